package daemon

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// start makes all parts, in the order in which they need each other. Of two that need each other the first asks for the
// second by a function, which nothing calls before Run.
func start(ctx context.Context, o Options) (_ *daemon, err error) {
	started := time.Now()
	d := &daemon{Options: o}

	// Settings, the log, and what only one daemon can have.
	d.settings, err = settings.Open(settings.Config{
		ConfigDir: o.ConfigDir, StateDir: o.StateDir, Load: o.Load, Asked: o.Reload, Everything: d.reload, Changed: d.use,
	})
	if err != nil {
		return nil, err
	}
	fixed := d.settings.Fixed
	log, level := journal.NewLog(o.Stderr, fixed.Log)
	d.log = log
	if d.locks, err = claim(o, d.log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.end()
		}
	}()

	// The mode, which is opened as far as that is quickly done, and this host.
	line := &statusLine{notify: o.Notify}
	health, metrics := healthz.NewHealth(), healthz.NewMetrics(o.Version)
	d.mode, err = modeswitch.Open(ctx, modeswitch.Config{
		Log: d.log, StateDir: o.StateDir, Fixed: fixed, Settings: d.settings.Current, Tell: line.setMode,
		Changed: func() { sources.Each(d.sources, sources.Revalidator.Revalidate) }, // modes differ in what they can do
		Foreign: metrics.Disturbed, Loop: func() *loop.Loop { return d.loop },
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.mode.Close()
		}
	}()
	d.host, err = node.NewHost(ctx, node.HostConfig{
		Log: d.log, Settings: d.settings.Current, Changed: d.useNode, Eligible: health.SetEligible, Several: sources.Several(fixed),
	})
	if err != nil {
		return nil, err
	}
	here := d.host.Current()
	d.drops = hostsetup.NewDropWatch(d.log)

	// The listeners of health and metrics, and sources, which say what they find there.
	d.http = &httpParts{metrics: metrics, health: health}
	d.http.server = healthz.NewServer(d.handlers(fixed.HTTPAddress, fixed.MetricsAddress), health, d.log)
	d.http.server.SetNode(here)
	var names []string // of sources
	for _, t := range sources.Asked(fixed) {
		s := t.Open(sources.Config{
			Settings: fixed, ConfigDir: o.ConfigDir, StateDir: o.StateDir, Version: o.Version,
			Several: sources.Several(fixed), Rules: sources.RulesInUse(d.settings, d.mode), Log: d.log, Host: d.host,
		})
		d.sources, names = append(d.sources, s), append(names, t.Name)
		if t.Eligibility {
			health.SetEligible(sources.Several(fixed)) // until it says more
		}
		if t.Remote {
			metrics.Watch(t.Name, s.Status)
		}
		sources.Each([]source.Source{s}, func(s sources.Troubled) { metrics.WatchProblems(t.Name, s.Problems) })
	}
	d.http.server.OnFailure(func(c loop.NodeHealth, why string) {
		if c.InCluster {
			sources.Each(d.sources, func(s sources.HealthTeller) { s.HealthPortFailed(c.Key, c.Port, why) })
		}
	})
	inUse := func() modes.Mode { return d.mode.Current().Mode }
	d.features = []*hostsetup.FeatureWarner{hostsetup.NewAffinity(d.log, inUse), hostsetup.NewTakeover(d.log, inUse)}

	// What files do not say of endpoints.
	d.checker = healthcheck.NewChecker(healthcheck.Config{
		Log:    d.log,
		Report: func(q healthcheck.Question, r healthcheck.Result) { d.keeper.Report(q, r) },

		Parallel: parallelProbes(),
		ExecUser: fixed.Health.ExecUser,
	})
	d.keeper = conditions.New(conditions.Config{
		StateDir: o.StateDir, Log: d.log, Checker: d.checker,
		Reconsider: func(keys ...source.Key) { d.loop.Reconsider(keys...) },
		OnNode:     func(drained bool) { d.loop.DrainHost(drained) },
	})

	// What tells the network of addresses.
	neighbours := newNeighbours(d.log)
	d.announcing = &announcing{neighbours: neighbours, noBGP: fixed.BGP.NoBGP(), Announcer: announcer.New(announcer.Config{
		Log: d.log, BGP: fixed.BGP, Neighbours: neighbours, RouterID: d.host.RouterID,
		Late: func(ctx context.Context) []policy.Family {
			return d.mode.Late(ctx, report.Unsynced(d.loop.Snapshot(), source.BGP, node.Families(fixed)))
		},
		Open: func(b configs.BGP, peers announcer.Peers) (announcer.Speaker, error) { return openBGP(d.log, b, peers) },
	})}

	// The loop, and what looks at what it does.
	limits := fixed.Limits.Products()
	d.doubts = &doubter{log: d.log, find: func() []report.Doubt { return report.Doubts(d.loop.Snapshot(), nil) }, doubtful: make(chan struct{}, 1)}
	d.loop = loop.New(loop.Config{
		Backends: d.mode.Backends(), Flows: flows.Config{Tracking: connections{}, RunDir: o.RunDir}, Node: here, Reserved: node.Reserved(fixed), Limits: &limits,
		Sources: names, MinInterval: fixed.Sync.MinInterval, LookInterval: fixed.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log,
		Surroundings: report.Surroundings{Details: d.keeper.Details, Listening: d.doubts.listening, Router: explain.Router},
		Conditions:   d.keeper, Announcer: d.announcing.Announcer, Observer: observer{d},
	})
	d.http.traffic = traffic.NewCollector(connections{}, d.loop.Syncs, d.log)
	d.http.traffic.Want(wantedTraffic(fixed))
	drained := d.keeper.Drains()
	health.Watch(d.loop)
	health.OnDrain(drained.Node)
	d.loop.DrainHost(drained.Node() != nil)

	// What answers questions, counts, and tells systemd.
	d.report = &reporter{
		version: o.Version, configDir: o.ConfigDir, started: started,
		host: d.host, settings: d.settings, rules: sources.RulesInUse(d.settings, d.mode), mode: d.mode, sources: d.sources, loop: d.loop,
		keeper: d.keeper, announcer: d.announcing.Announcer, traffic: d.http.traffic, health: health, warners: d.warners(),
	}
	counter := newCounter(&counter{
		loop: d.loop, keeper: d.keeper, doubts: d.doubts, settings: d.settings, sources: d.sources, warn: d.report.warnings,
	})
	d.systemd = &systemd{notify: o.Notify, watch: o.Watch, line: line, loop: d.loop, counter: counter}
	families := node.Families(fixed)
	metrics.Register(d.http.traffic)
	metrics.Follow(families...)
	metrics.WatchCounts(counter.now, families...)
	metrics.WatchStalls(func() []report.Stall { return append(d.mode.Stalls(), d.loop.Stalls()...) })
	metrics.WatchChecks(answersOf(d.checker))
	metrics.WatchAnnounced(func() healthz.Announced { return d.announcing.counts(report.Announced(d.loop.Snapshot(), nil)) })
	if faults, _ := d.settings.Pending(); source.FirstError(faults) == nil {
		metrics.Reloaded(time.Now())
	}

	if d.locks.socket, err = control.Listen(o.RunDir); err != nil {
		return nil, err
	}
	mode := d.mode.Current()
	d.log.Info("starting", "version", o.Version, "mode", mode.Name, "why", mode.Why, "config_dir", o.ConfigDir, "node", here.Name)
	d.settings.Begin(ctx, log, level)
	for _, w := range slices.Concat(d.locks.namespace.Warnings(), d.mode.Missing()) {
		d.log.Warn(w)
	}
	return d, nil
}

// warners returns what warns of the host, of listeners and of directories.
func (d *daemon) warners() []warnFunc {
	always := func(warnings func() []string) warnFunc {
		return func(context.Context) []string { return warnings() }
	}
	storage := newStorage(&storage{
		dir: d.StateDir, claimed: d.locks.state != nil, unkept: d.settings.KeepError, statfs: unix.Statfs, conditions: d.keeper.Problem,
	})
	list := []warnFunc{
		always(d.mode.Warnings), always(d.locks.namespace.Warnings), always(d.mode.Contended), always(d.mode.Missing),
		func(ctx context.Context) []string {
			return hostsetup.Verify(ctx, d.settings.Current(), d.mode.Current().Mode)
		},
		always(d.http.server.Warnings), always(d.drops.Warnings),
	}
	for _, f := range d.features {
		list = append(list, always(f.Warnings))
	}
	socket := func() []string { return d.locks.socket.Warnings() } // it is opened later
	return append(list, always(storage.warnings), always(socket), always(d.Stderr.Warnings))
}

// parallelProbes returns how many endpoints are asked at once at most: a quarter of the
// descriptors that this process may have, where that is less than the usual number (0).
func parallelProbes() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur/4 >= healthcheck.Parallel {
		return 0
	}
	return max(1, int(l.Cur/4))
}
