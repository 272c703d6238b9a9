package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
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

// AskPlan asks the daemon of a run directory.
func AskPlan(ctx context.Context, runDir string) (*plan.Report, error) {
	r := new(plan.Report)
	if err := control.NewClient(filepath.Clean(runDir)).Patient(planPatience).Ask(ctx, PlanPath, nil, r); err != nil {
		return nil, err
	}
	return r, nil
}

// planSetting returns what consequences depend on in a mode.
func planSetting(ctx context.Context, m modes.Mode, s configs.Settings) plan.Setting {
	return plan.Setting{Drains: m.DrainTimeout != nil, Drain: m.DrainTimeoutUnder(s), Count: func(p *report.FamilyPlan, list []report.Consequence) error {
		ctx, cancel := context.WithTimeout(ctx, planCountTime)
		defer cancel()
		return p.Count(ctx, connections{}, connections{}.Established, list)
	}}
}

// PlanAlone says what the first sync of a daemon would change, where none runs: the services that were last
// accepted are compared with the files, and the kernel with what it should hold. It opens
// the mode that the daemon would, which probes the kernel, and changes nothing. Warnings go to stderr.
func PlanAlone(ctx context.Context, c settings.Config, stderr io.Writer) (*plan.Report, error) {
	r := &plan.Report{Against: "the files that were last accepted"}
	w, err := settings.Open(c)
	var faulty settings.Error
	if errors.As(err, &faulty) {
		r.Faults = faulty
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	s := w.Fixed
	if len(s.Sources) != 1 || s.Sources[0] != file.Name {
		return nil, fmt.Errorf("services come from %v, and only a running daemon knows those that are not of files", s.Sources)
	}
	log, _ := journal.NewLog(stderr, configs.Default().Log)
	in, err := modeswitch.Choose(ctx, modes.OpenConfig{Settings: s, StateDir: c.StateDir, Log: log})
	if err != nil {
		return nil, err
	}
	err = compare(ctx, in, s, c, r)
	faults, _ := w.Pending()
	r.Faults = append(faults, r.Faults...)
	return r, errors.Join(err, in.Close())
}

// compare plans with the files, and with the kernel of a mode.
func compare(ctx context.Context, in *modeswitch.Active, s configs.Settings, c settings.Config, r *plan.Report) error {
	addrs, err := node.FirstAddresses(ctx)
	if err != nil {
		return err
	}
	n := node.Build(s, addrs)
	rules := read.Rules{
		Limits: s.Limits, GuardPrograms: s.Health.ExecUser == "", Owners: func() []read.Owner { return s.Owners },
		Check: sources.Hold(s, func() []string { return []string{in.Name} }),
	}
	reading := plan.LastGood(rules, node.Reserved(s), c.ConfigDir, c.StateDir)
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

// Explain says what becomes of a packet where no daemon runs, but would hold what is held.
func Explain(ctx context.Context, held check.Held, q explain.Question) (*explain.Report, error) {
	if err := held.Look(); err != nil {
		return nil, err
	}
	mode, err := modeswitch.WouldUse(ctx, held.Settings)
	if err != nil {
		return nil, err
	}
	w := explain.NewWorld(held.Snapshot, mode)
	w.Places = sources.Rules(held.Settings).EndpointPlaces
	for _, f := range held.Faults {
		if !f.Warning {
			w.Unread = append(w.Unread, f.String())
		}
	}
	return explain.Explain(ctx, w, q, explain.ThisHost{Mode: mode})
}
