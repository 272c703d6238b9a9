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
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/conditions"
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
	d.settings = &settingsWatcher{
		configDir: o.ConfigDir, stateDir: o.StateDir, load: o.Load, asked: o.Reload, everything: d.reload, changed: d.use,
	}
	fixed, err := d.settings.open()
	if err != nil {
		return nil, err
	}
	d.log, d.settings.level = newLog(o.Stderr, fixed.Log)
	d.settings.log = d.log
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
	d.mode = &modeSwitch{
		log: d.log, stateDir: o.StateDir, fixed: fixed, settings: d.settings.current, tell: line.setMode,
		changed: func() { each(d.sources, revalidator.Revalidate) }, // modes differ in what they can do
	}
	if err = d.mode.openFirst(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.mode.closeMode(d.mode.active)
		}
	}()
	addrs, err := firstAddresses(ctx)
	if err != nil {
		return nil, err
	}
	health, metrics := healthz.NewHealth(), healthz.NewMetrics(o.Version)
	d.host = &host{
		log: d.log, settings: d.settings.current, changed: d.useNode, eligible: health.SetEligible, several: several(fixed),
		addrs: addrs, node: node.Build(fixed, addrs),
	}
	d.drops = &dropWatch{log: d.log, total: dropped}

	// The listeners of health and metrics, and sources, which say what they find there.
	d.http = &httpParts{metrics: metrics, health: health}
	pages := kubeProxyPages{mode: d.mode, settings: d.settings}
	d.http.server = healthz.NewServer(d.http.handlers(fixed.HTTPAddress, fixed.MetricsAddress, pages), health, d.log)
	d.http.server.SetNode(d.host.node)
	var names []string // of sources
	for _, t := range asked(fixed) {
		s := t.open(sourceConfig{
			Settings: fixed, configDir: o.ConfigDir, stateDir: o.StateDir, version: o.Version,
			several: several(fixed), rules: rulesInUse(d.settings, d.mode), log: d.log, host: d.host,
		})
		d.sources, names = append(d.sources, s), append(names, t.name)
		if t.eligibility {
			health.SetEligible(several(fixed)) // until it says more
		}
		if t.remote {
			metrics.Watch(t.name, s.Status)
		}
		each([]source.Source{s}, func(s troubled) { metrics.WatchProblems(t.name, s.Problems) })
	}
	d.http.server.OnFailure(func(c loop.NodeHealth, why string) {
		if c.InCluster {
			each(d.sources, func(s healthTeller) { s.HealthPortFailed(c.Key, c.Port, why) })
		}
	})
	inUse := func() modes.Mode { return d.mode.current().Mode }
	d.features = []*featureWarner{newAffinity(d.log, inUse), newTakeover(d.log, inUse)}

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
	late := &lateFamilies{mode: d.mode, unsynced: func() []*policy.State { return report.Unsynced(d.loop.Snapshot(), source.BGP, node.Families(fixed)) }}
	neighbours := newNeighbours(d.log)
	d.announcing = &announcing{neighbours: neighbours, noBGP: fixed.BGP.NoBGP(), Announcer: announcer.New(announcer.Config{
		Log: d.log, BGP: fixed.BGP, Neighbours: neighbours, RouterID: d.host.routerID,
		Late: late.list,
		Open: func(b configs.BGP, peers announcer.Peers) (announcer.Speaker, error) { return openBGP(d.log, b, peers) },
	})}

	// The loop, and what looks at what it does.
	limits := fixed.Limits.Products()
	d.doubts = &doubter{log: d.log, find: func() []report.Doubt { return report.Doubts(d.loop.Snapshot(), nil) }, doubtful: make(chan struct{}, 1)}
	d.loop = loop.New(loop.Config{
		Backends: d.mode.active.proxies(), Flows: connections{}, Node: d.host.node, Reserved: node.Reserved(fixed), Limits: &limits,
		Sources: names, MinInterval: fixed.Sync.MinInterval, LookInterval: fixed.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log,
		Surroundings: report.Surroundings{Details: d.keeper.Details, Listening: d.doubts.listening, Router: explain.Router},
		Conditions:   d.keeper, Announcer: d.announcing.Announcer, Observer: observer{d},
	})
	d.mode.loop = d.loop
	d.mode.foreign = &foreignChanges{log: d.log, metrics: metrics, fixed: fixed, contention: disturbances(d.loop)}
	d.http.traffic = traffic.NewCollector(connections{}, func() []report.Family { return d.loop.Snapshot().Syncs }, d.log)
	d.http.traffic.Want(wantedTraffic(fixed))
	drained := d.keeper.Drains()
	health.Watch(d.loop)
	health.OnDrain(drained.Node)
	d.loop.DrainHost(drained.Node() != nil)

	// What answers questions, counts, and tells systemd.
	d.report = &reporter{
		version: o.Version, configDir: o.ConfigDir, started: started,
		host: d.host, settings: d.settings, rules: rulesInUse(d.settings, d.mode), mode: d.mode, sources: d.sources, loop: d.loop,
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
	metrics.WatchStalls(func() []report.Stall { return append(d.mode.stalls(), d.loop.Stalls()...) })
	metrics.WatchChecks(answersOf(d.checker))
	metrics.WatchAnnounced(func() healthz.Announced { return d.announcing.counts(report.Announced(d.loop.Snapshot(), nil)) })
	if faults, _ := d.settings.pending(); source.FirstError(faults) == nil {
		metrics.Reloaded(time.Now())
	}

	if d.locks.socket, err = control.Listen(o.RunDir); err != nil {
		return nil, err
	}
	d.log.Info("starting", "version", o.Version, "mode", d.mode.active.Name, "why", d.mode.active.why, "config_dir", o.ConfigDir, "node", d.host.node.Name)
	d.settings.begin(ctx)
	for _, w := range slices.Concat(d.locks.namespace.Warnings(), d.mode.active.missing()) {
		d.log.Warn(w)
	}
	d.mode.sysctls = hostsetup.VerifySysctls(fixed, d.mode.active.Mode)
	return d, nil
}

// warners returns what warns of the host, of listeners and of directories.
func (d *daemon) warners() []warnFunc {
	always := func(warnings func() []string) warnFunc {
		return func(context.Context) []string { return warnings() }
	}
	storage := newStorage(&storage{
		dir: d.StateDir, claimed: d.locks.state != nil, settings: d.settings, statfs: unix.Statfs, conditions: d.keeper.Problem,
	})
	list := []warnFunc{
		always(d.mode.warnings), always(d.locks.namespace.Warnings), always(d.mode.foreign.problems), always(d.mode.missing),
		func(ctx context.Context) []string {
			return hostsetup.Verify(ctx, d.settings.current(), d.mode.current().Mode)
		},
		always(d.http.server.Warnings), always(d.drops.warnings),
	}
	for _, f := range d.features {
		list = append(list, always(f.warnings))
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
