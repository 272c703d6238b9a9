package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/plan"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

// PlanPath is where the control socket says what a sync would change, as a plan.Report.
const PlanPath = "/v1/plan"

// planCountTime is how long connections may be counted for a plan.
const planCountTime = 5 * time.Second

// planPatience is how long a client waits: the loop plans for 20 s, what is counted of
// each family takes planCountTime, and nothing is said before all of it.
const planPatience = 55 * time.Second

// plan says what is not in the kernel yet, and what a sync would repair there.
func (r *reporter) plan(ctx context.Context, _ url.Values) (*plan.Report, error) {
	p, err := r.loop.Plan(ctx)
	if err != nil {
		return nil, err
	}
	in := r.mode.Current()
	report := &plan.Report{Against: "what the kernel holds", Mode: in.Name}
	refusals := r.loop.Refusals()
	for _, s := range r.sources {
		st := sources.AsUsed(s.Status(), refusals)
		for _, f := range st.Files {
			report.Faults = append(report.Faults, faultsOf(f)...)
		}
	}
	faults, _ := r.settings.Pending()
	report.Faults = append(report.Faults, faults...)
	report.Fill(p.Edits, p.Families, planSetting(ctx, in.Mode, r.settings.Current()))
	return report, nil
}

// faultsOf returns what is wrong with a file. One that is not used for another reason has
// a fault that says so.
func faultsOf(f source.FileStatus) []source.Fault {
	if f.State == source.Accepted || source.AnyError(f.Faults) {
		return f.Faults
	}
	why := source.Fault{Pos: source.Position{File: f.Path}, Msg: fmt.Sprintf("the file is %s: what it says is not used yet", f.State)}
	return append(slices.Clone(f.Faults), why)
}

// planSetting returns what consequences depend on in a mode.
func planSetting(ctx context.Context, m modes.Mode, s configs.Settings) plan.Setting {
	return plan.Setting{Drains: m.DrainTimeout != nil, Drain: m.DrainTimeoutUnder(s), Count: func(p *report.FamilyPlan, list []report.Consequence) error {
		ctx, cancel := context.WithTimeout(ctx, planCountTime)
		defer cancel()
		return p.Count(ctx, connections{}, connections{}, list)
	}}
}

// A Planner plans where no daemon runs.
type Planner struct {
	ConfigDir, StateDir string

	// Load reads svcproxy.toml, and lays flags over it.
	Load   func(path string) (configs.Settings, []source.Fault, error)
	Stderr io.Writer // of warnings
}

// Alone says what the first sync of a daemon would change: the services that were last
// accepted are compared with the files, and the kernel with what it should hold. It opens
// the mode that the daemon would, which probes the kernel, and changes nothing.
func (p Planner) Alone(ctx context.Context) (*plan.Report, error) {
	r := &plan.Report{Against: "the files that were last accepted"}
	w, err := settings.Open(settings.Config{ConfigDir: p.ConfigDir, StateDir: p.StateDir, Load: p.Load})
	var faulty settings.Error
	if errors.As(err, &faulty) {
		r.Faults = faulty
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	s := w.Fixed
	if err := filesOnly(s); err != nil {
		return nil, err
	}
	log, _ := journal.NewLog(p.Stderr, configs.Default().Log)
	in, err := modeswitch.Choose(ctx, modes.OpenConfig{Settings: s, StateDir: p.StateDir, Log: log})
	if err != nil {
		return nil, err
	}
	err = p.compare(ctx, in, s, r)
	faults, _ := w.Pending()
	r.Faults = append(faults, r.Faults...)
	return r, errors.Join(err, in.Close())
}

// filesOnly returns why nobody but a daemon can know the services.
func filesOnly(s configs.Settings) error {
	if len(s.Sources) != 1 || s.Sources[0] != file.Name {
		return fmt.Errorf("services come from %v, and only a running daemon knows those that are not of files", s.Sources)
	}
	return nil
}

func (p Planner) compare(ctx context.Context, in *modeswitch.Active, s configs.Settings, r *plan.Report) error {
	addrs, err := node.FirstAddresses(ctx)
	if err != nil {
		return err
	}
	n := node.Build(s, addrs)
	rules := read.Rules{Limits: s.Limits, Check: sources.Hold(s, func() []string { return []string{in.Name} })}
	reading := plan.LastGood(rules, node.Reserved(s), p.ConfigDir, p.StateDir)
	r.Mode, r.Faults, r.Unreadable = in.Name, reading.Faults, reading.Unreadable
	r.Errors = append(r.Errors, in.Missing()...)
	var families []*report.FamilyPlan
	for _, fam := range node.Families(s) {
		b := in.Backends[fam]
		if b == nil {
			continue
		}
		after := policy.NewState(fam, n, reading.After)
		f := report.ComparePlan(policy.NewState(fam, n, reading.Before), after, n, true)
		f.Objects, f.Err = b.Plan(ctx, after)
		families = append(families, f)
	}
	r.Fill(reading.Edits, families, planSetting(ctx, in.Mode, s))
	return nil
}

// AskPlan asks the daemon of a run directory.
func AskPlan(ctx context.Context, runDir string) (*plan.Report, error) {
	r := new(plan.Report)
	if err := control.NewClient(filepath.Clean(runDir)).Patient(planPatience).Ask(ctx, PlanPath, nil, r); err != nil {
		return nil, err
	}
	return r, nil
}
