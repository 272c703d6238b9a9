package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/notify"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/lately"
	"svcproxy.dev/svcproxy/netutil/l2"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// syncTimeout is how long a part of a sync may take, see proxier.Progressed. All of
// 10,000 services take some 10 s with iptables-nft; this is far more, and less than
// /healthz waits.
const syncTimeout = time.Minute

// Run works until ctx ends, and leaves the kernel as it is. It makes all parts, in the order in which they need each
// other. Of two that need each other the first asks for the second by a function, which nothing calls before all are made.
func Run(ctx context.Context, o Options) (err error) {
	d := &daemon{Options: o, started: time.Now()}

	// Settings, the log, and what only one daemon can have.
	d.settings, err = settings.Open(settings.Config{
		ConfigDir: o.ConfigDir, StateDir: o.StateDir, Load: o.Load, Asked: o.Reload, Everything: d.reload, Changed: d.use,
	})
	if err != nil {
		return err
	}
	fixed := d.settings.Fixed
	log, level := journal.NewLog(o.Stderr, fixed.Log)
	d.log = log
	namespace, err := claimNamespace(o)
	if err != nil {
		return err
	}
	defer namespace.Close()
	state, err := control.ClaimState(o.StateDir)
	if errors.Is(err, control.ErrClaimed) {
		return err
	} else if err != nil { // read-only, say, or full: services matter more
		log.Warn("cannot lock the state directory; a second svcproxy would not be refused", "err", err)
	}
	defer state.Close()

	// The mode, which is opened as far as that is quickly done, and this host.
	line := &statusLine{notify: o.Notify}
	health, metrics := healthz.NewHealth(), healthz.NewMetrics(o.Version)
	d.mode, err = modeswitch.Open(ctx, modeswitch.Config{
		Log: log, StateDir: o.StateDir, Fixed: fixed, Settings: d.settings.Current, Tell: line.setMode,
		Changed: func() { sources.Each(d.sources, sources.Revalidator.Revalidate) }, // modes differ in what they can do
		Foreign: metrics.Disturbed, Loop: func() *loop.Loop { return d.loop },
	})
	if err != nil {
		return err
	}
	defer d.mode.StopRepairs()
	works := false
	defer func() {
		if !works {
			d.mode.Close()
		}
	}()
	d.host, err = node.NewHost(ctx, node.HostConfig{
		Log: log, Settings: d.settings.Current, Changed: d.useNode, Eligible: health.SetEligible, Several: sources.Several(fixed),
	})
	if err != nil {
		return err
	}
	here, families := d.host.Current(), node.Families(fixed)

	// The listeners of health and metrics, and sources, which say what they find there.
	d.http, d.changes = httpParts{metrics: metrics, health: health}, d.newTracker()
	d.http.server = healthz.NewServer(d.handlers(fixed.HTTPAddress, fixed.MetricsAddress, fixed.StatusAt()), health, log)
	d.http.server.SetNode(here)
	var names []string // of sources
	for _, t := range sources.Asked(fixed) {
		s := t.Open(sources.Config{
			Settings: fixed, ConfigDir: o.ConfigDir, StateDir: o.StateDir, Version: o.Version,
			Several: sources.Several(fixed), Rules: sources.RulesInUse(d.settings, d.mode), Log: log, Host: d.host,
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
	features := []*hostsetup.FeatureWarner{hostsetup.NewAffinity(log, inUse), hostsetup.NewTakeover(log, inUse)}

	// What files do not say of endpoints.
	checker := healthcheck.NewChecker(healthcheck.Config{
		Log:    log,
		Report: func(q healthcheck.Question, r healthcheck.Result) { d.keeper.Report(q, r) },

		Parallel: parallelProbes(),
		ExecUser: fixed.Health.ExecUser,
	})
	d.keeper = conditions.New(conditions.Config{
		StateDir: o.StateDir, Log: log, Checker: checker,
		Reconsider: func(keys ...source.Key) { d.loop.Reconsider(keys...) },
		OnNode:     func(drained bool) { d.loop.DrainHost(drained) },
	})

	// What tells the network of addresses.
	neighbours := &neighbours{Announcer: l2.New(log), begin: make(chan struct{}, 1)}
	d.announcer = announcer.New(announcer.Config{
		Log: log, BGP: fixed.BGP, Neighbours: neighbours, RouterID: d.host.RouterID,
		Late: func(ctx context.Context) []policy.Family {
			return d.mode.Late(ctx, report.Unsynced(d.loop.Snapshot(), source.BGP, families))
		},
		Open: func(b configs.BGP, peers announcer.Peers) (announcer.Speaker, error) { return openBGP(log, b, peers) },
	})

	// The loop, and what looks at what it does.
	limits := fixed.Limits.Products()
	d.doubts = &doubter{log: log, find: func() []report.Doubt { return report.Doubts(d.loop.Snapshot(), nil) }, doubtful: make(chan struct{}, 1)}
	d.loop = loop.New(loop.Config{
		Backends: d.mode.Backends(), Flows: flows.Config{Tracking: connections{}, RunDir: o.RunDir}, Node: here, Reserved: node.Reserved(fixed), Limits: &limits,
		Sources: names, MinInterval: fixed.Sync.MinInterval, LookInterval: fixed.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: log,
		Surroundings: report.Surroundings{Details: d.keeper.Details, Listening: d.doubts.listening, Router: explain.Router},
		Conditions:   d.keeper, Announcer: d.announcer, Observer: observer{d},
	})
	d.http.traffic = traffic.NewCollector(connections{}, d.loop.Syncs, log)
	d.http.traffic.Want(wantedTraffic(fixed))
	d.loop.SetNamed(fixed.Metrics.MaxServices)
	drained := d.keeper.Drains()
	health.Watch(d.loop)
	health.OnDrain(drained.Node)
	d.loop.DrainHost(drained.Node() != nil)

	d.notifier = notify.New(notify.Config{
		Log: log, Changes: d.changes, Node: fixed.NodeName, Settings: filepath.Join(o.ConfigDir, read.SettingsName), Version: o.Version,
		Called: metrics.Notified,
	}, fixed.Notify)

	// What warns, counts, and answers questions.
	socket, err := control.Listen(o.RunDir)
	if err != nil {
		return err
	}
	storage := newStorage(&storage{
		dir: o.StateDir, claimed: state != nil, unkept: d.settings.KeepError, statfs: unix.Statfs, conditions: d.keeper.Problem,
	})
	drops := hostsetup.NewDropWatch(log)
	d.warnings = func(ctx context.Context) []string {
		list := slices.Concat(d.mode.Warnings(), namespace.Warnings(), d.mode.Contended(), d.mode.Current().Missing(),
			hostsetup.Verify(ctx, d.settings.Current(), d.mode.Current().Mode), d.http.server.Warnings(), drops.Warnings())
		for _, f := range features {
			list = append(list, f.Warnings()...)
		}
		return slices.Concat(list, storage.warnings(), d.notifier.Warnings(), socket.Warnings(), o.Stderr.Warnings())
	}
	d.counted = lately.Value[healthz.Counts]{Find: d.count, Moment: countsMoment, Patience: countsPatience}
	d.warned = lately.Value[int]{Find: d.countWarnings, Moment: warningsMoment, Patience: countsPatience}
	metrics.Register(d.http.traffic)
	metrics.Follow(families...)
	metrics.WatchCounts(d.countNow, families...)
	metrics.WatchStalls(func() []report.Stall { return append(d.mode.Current().Stalls(), d.loop.Stalls()...) })
	metrics.Register(checker.Answers())
	metrics.WatchAnnounced(func() ([]report.AnnouncedAddress, []healthz.AnnounceSession) {
		return report.Announced(d.loop.Snapshot(), nil), announceSessions(d.announcer.Sessions())
	})
	if faults, _ := d.settings.Pending(); source.FirstError(faults) == nil {
		metrics.Reloaded(time.Now())
	}

	mode := d.mode.Current()
	log.Info("starting", "version", o.Version, "mode", mode.Name, "why", mode.Why, "config_dir", o.ConfigDir, "node", here.Name)
	d.settings.Begin(ctx, log, level)
	for _, w := range slices.Concat(namespace.Warnings(), d.mode.Current().Missing()) {
		log.Warn(w)
	}

	works = true
	g, ctx := errgroup.WithContext(ctx)
	always := func(work func(context.Context)) { g.Go(func() error { work(ctx); return nil }) }
	bounded := func(work func(context.Context) error) { g.Go(func() error { return untilEnd(ctx, work) }) }
	always(func(ctx context.Context) { socket.Serve(ctx, log, d.routes()) })
	g.Go(func() error { return d.http.server.Run(ctx) })
	for _, s := range d.sources {
		bounded(func(ctx context.Context) error { return s.Run(ctx, sink{d.loop, features}) })
	}
	g.Go(func() error {
		defer d.mode.LoopEnded()
		return untilEnd(ctx, func(ctx context.Context) error { return unlessDone(ctx, d.loop.Run(ctx)) })
	})
	bounded(func(ctx context.Context) error { d.inspectHost(ctx); return nil })
	always(func(ctx context.Context) { links.Watch(ctx, log, d.host.LookAtAddresses) })
	bounded(func(ctx context.Context) error { d.settings.Follow(ctx); return nil })
	always(func(ctx context.Context) { d.tellSystemd(ctx, line) })
	bounded(d.mode.Follow)
	always(func(ctx context.Context) { saveMemory(ctx, d.loop.Ready()) })
	always(d.doubts.run)
	bounded(func(ctx context.Context) error { drops.Run(ctx); return nil })
	always(d.http.traffic.Run)
	bounded(func(ctx context.Context) error { return unlessDone(ctx, checker.Run(ctx)) })
	g.Go(func() error { return d.keeper.Run(ctx) })
	bounded(d.keeper.Keep)
	bounded(func(ctx context.Context) error { d.announcer.Run(ctx, d.loop.Ready()); return nil })
	always(neighbours.run)
	bounded(func(ctx context.Context) error { d.notifier.Run(ctx, d.loop.Ready()); return nil })
	return g.Wait()
}

// untilEnd does work that ends with ctx, or soon after: it is not waited for any longer
// when it hangs on a disk, as that of a file server that is gone, or on a program that does.
func untilEnd(ctx context.Context, work func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(modeswitch.EndPatience):
		return nil
	}
}

// unlessDone returns err, or nil when it is only that ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
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
