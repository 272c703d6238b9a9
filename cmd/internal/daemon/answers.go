package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/drain"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/plan"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/cmd/internal/top"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// routes returns what the control socket answers. Of these methods only those that drain, and those about versions of
// files, change anything.
func (d *daemon) routes() *control.Routes {
	r := new(control.Routes)
	d.addStatus(r)
	control.Get(r, PlanPath, d.plan)
	control.Get(r, top.Path, d.answerTop)
	control.Get(r, trace.Path, d.traceNames)
	d.addExplain(r)
	(&sources.Versioning{Log: d.log, StateDir: d.StateDir, Sources: d.sources}).AddRoutes(r)
	drain.New(drain.Config{
		Log: d.log, Keeper: d.keeper, Loop: d.loop, Told: d.announcer.Told, Open: connections{}.Open,
		Heard: func() []string { return d.http.server.Heard(d.settings.Fixed.HTTPAddress) },
	}).AddRoutes(r)
	return r
}

// addStatus has status answered: all of it, or of some services; a summary; some services alone.
func (d *daemon) addStatus(routes *control.Routes) {
	control.Get(routes, "/v1/status", func(ctx context.Context, query url.Values) (control.Status, error) {
		match, err := matcher(query)
		if err != nil {
			return control.Status{}, err
		}
		return d.status(ctx, match), nil
	})
	control.Get(routes, "/v1/services", func(ctx context.Context, query url.Values) ([]report.ServiceStatus, error) {
		match, err := matcher(query)
		if err != nil {
			return nil, err
		}
		list := report.StatusOf(d.loop.Snapshot(), match).Services
		if match != nil {
			q := traffic.Query{Names: query["name"]}
			if q.Names.Labels() {
				q.Labels = report.Labels(d.loop.Snapshot())
			}
			d.addTraffic(ctx, q, list)
		}
		return list, nil
	})
	control.Get(routes, "/v1/summary", func(ctx context.Context, query url.Values) (control.Summary, error) {
		most, err := control.MostOf(query)
		if err != nil {
			return control.Summary{}, err
		}
		return d.summary(ctx, most), nil
	})
}

// matcher returns what accepts the services that are asked for; nil: all.
func matcher(query url.Values) (func(*source.Service) bool, error) {
	which, err := control.SelectionOf(query)
	if err != nil || len(which) == 0 {
		return nil, err
	}
	return func(s *source.Service) bool { return which.Matches(s.Key, s.Labels) }, nil
}

// summary returns what is known in short, with at most so many problems.
func (d *daemon) summary(ctx context.Context, most int) control.Summary {
	s, _ := d.outline(ctx, most)
	return s
}

// outline returns what is known in short, and what sources know of themselves.
func (d *daemon) outline(ctx context.Context, most int) (control.Summary, []source.Status) {
	snap := d.loop.Snapshot()
	services := report.Summarize(snap, most)
	about := d.about(ctx, services.Families, services.Refusals)
	about.Announced.Addresses = report.Announced(snap, nil)
	s := control.Summarize(about, services, most)
	addresses := 0
	for _, n := range services.Actions {
		addresses += n
	}
	if addresses <= control.MaxListed && services.Services <= control.MaxListed {
		s.Everything = report.StatusOf(snap, nil).Services
	}
	return s, about.Sources
}

// status returns what the daemon knows of itself, without what is not known before ctx ends. Of services it has
// those that match accepts; nil: all.
func (d *daemon) status(ctx context.Context, match func(*source.Service) bool) control.Status {
	s := d.loop.Snapshot()
	services := report.StatusOf(s, match)
	st := d.about(ctx, services.Families, services.Refusals)
	st.Loop, st.Announced.Addresses = services, report.Announced(s, match)
	return st
}

// about is status without the loop's own, of which it is given these parts.
func (d *daemon) about(ctx context.Context, families []report.FamilyStatus, refusals []claims.Refusal) control.Status {
	st := control.Status{
		Daemon: control.Daemon{
			Version: d.Version, PID: os.Getpid(), Started: d.started,
			Ready: d.http.health.Ready(), Healthy: d.http.health.Healthy(), Settings: d.inUse(families),
		},
		Drains: d.keeper.Drains().List(), Announced: control.Announced{Sessions: d.announcer.Sessions()},
	}
	for _, s := range d.sources {
		st.Sources = append(st.Sources, sources.AsUsed(s.Status(), refusals))
	}
	st.Faults, st.Restart = d.settings.Pending()
	st.Warnings = d.warnings(ctx)
	return st
}

// inUse returns which settings are in use.
func (d *daemon) inUse(families []report.FamilyStatus) control.Settings {
	n := d.host.Current()
	s := control.Settings{
		ConfigDir: d.ConfigDir, Mode: d.mode.Current().Name, NodeName: n.Name, Zone: n.Zone,
		Families: []string{}, NodePortAddresses: []string{},
	}
	for _, a := range n.NodePortAddrs {
		s.NodePortAddresses = append(s.NodePortAddresses, a.String())
	}
	for _, f := range families {
		s.Families = append(s.Families, f.Family)
	}
	return s
}

// plan says what is not in the kernel yet, and what a sync would repair there.
func (d *daemon) plan(ctx context.Context, _ url.Values) (*plan.Report, error) {
	p, err := d.loop.Plan(ctx)
	if err != nil {
		return nil, err
	}
	in := d.mode.Current()
	report := &plan.Report{Against: "what the kernel holds", Mode: in.Name}
	refusals := d.loop.Refusals()
	for _, s := range d.sources {
		st := sources.AsUsed(s.Status(), refusals)
		for _, f := range st.Files {
			report.Faults = append(report.Faults, faultsOf(f)...)
		}
	}
	faults, _ := d.settings.Pending()
	report.Faults = append(report.Faults, faults...)
	report.Fill(p.Edits, p.Families, planSetting(ctx, in.Mode, d.settings.Current()))
	return report, nil
}

// faultsOf returns the faults of a file. If a file is not in use although it has no error, a fault
// names its state.
func faultsOf(f source.FileStatus) []source.Fault {
	if f.State == source.Accepted || source.AnyError(f.Faults) {
		return f.Faults
	}
	why := source.Fault{Pos: source.Position{File: f.Path}, Msg: fmt.Sprintf("the file is %s: what it says is not used yet", f.State)}
	return append(slices.Clone(f.Faults), why)
}

// topAge is how old what top is told may be: a little less than its shortest interval.
const topAge = 900 * time.Millisecond

// wantedTraffic returns what settings want of it.
func wantedTraffic(s configs.Settings) traffic.Wanted {
	return traffic.Wanted{Always: s.Metrics.Traffic, Services: s.Metrics.MaxServices}
}

// answerTop answers which services have the most traffic.
func (d *daemon) answerTop(ctx context.Context, values url.Values) (traffic.Report, error) {
	q, err := top.QueryOf(values)
	if err != nil {
		return traffic.Report{}, err
	}
	if q.Names.Labels() {
		q.Labels = report.Labels(d.loop.Snapshot())
	}
	return d.http.traffic.Report(ctx, q, topAge)
}

// trafficTime is how long status waits for what is counted.
const trafficTime = 200 * time.Millisecond

// addTraffic adds what is counted of the services that q names to their status, where it is always counted and at hand.
func (d *daemon) addTraffic(ctx context.Context, q traffic.Query, list []report.ServiceStatus) {
	ctx, cancel := context.WithTimeout(ctx, trafficTime)
	defer cancel()
	q.Endpoints, q.Limit = true, traffic.MaxLimit
	report, err := d.http.traffic.Counted(ctx, q)
	if err == nil && !report.Time.IsZero() {
		report.AddTo(list)
	}
}

// traceNames answers svcproxy trace: what services there are, for packets to one "address" or
// to all of them. Nothing but that is said where the client has the "revision".
func (d *daemon) traceNames(_ context.Context, q url.Values) (*trace.Names, error) {
	mode := d.mode.Current().Name
	now := d.loop.Revision() + uint64(d.started.UnixNano()) // of this run
	if q.Get("revision") == strconv.FormatUint(now, 10) {
		return &trace.Names{Mode: mode, Revision: now, Unchanged: true}, nil
	}
	only, err := netip.ParseAddr(q.Get("address"))
	if err != nil && q.Get("address") != "" {
		return nil, fmt.Errorf("address to trace: %w", err)
	}
	n := trace.NamesOf(d.loop.Snapshot().Snapshot, only)
	n.Mode, n.Revision = mode, now
	return n, nil
}

// explainTime bounds how long explain reads the rules and routes of the host.
const explainTime = 20 * time.Second

// addExplain has the control socket say what becomes of a packet.
func (d *daemon) addExplain(routes *control.Routes) {
	busy := make(chan struct{}, 1) // one question at a time: each may read all rules of the host
	control.Get(routes, explain.Path, func(ctx context.Context, query url.Values) (*explain.Report, error) {
		q, err := explain.FromQuery(query)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, explainTime)
		defer cancel()
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another question: %w", ctx.Err())
		}
		mode := d.mode.Current().Mode
		now := d.loop.Snapshot()
		w := explain.NewWorld(now.Snapshot, mode)
		w.Places, w.Details = sources.RulesInUse(d.settings, d.mode).EndpointPlaces, now.Details
		w.Announced = report.Announced(now, nil)
		for _, s := range d.sources {
			w.AddFaults(s.Status())
		}
		return explain.Explain(ctx, w, q, explain.ThisHost{Mode: mode})
	})
}
