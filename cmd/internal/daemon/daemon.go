// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
package daemon

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/source"
)

// syncTimeout is how long a part of a sync may take, see proxier.Progressed. All of
// 10,000 services take some 10 s with iptables-nft; this is far more, and less than
// /healthz waits.
const syncTimeout = time.Minute

// Options say what a daemon works on.
type Options struct {
	ConfigDir, StateDir, RunDir string
	Version                     string
	Namespace                   string // of the abstract socket that one daemon of a network namespace can hold: control.NamespaceName

	// Load reads svcproxy.toml, and lays flags over it.
	Load func(path string) (configs.Settings, []source.Fault, error)

	Reload <-chan os.Signal   // read everything again
	Notify func(state string) // tells systemd
	Watch  time.Duration      // systemd wants a sign of life this often; 0: never
	Stderr *journal.Queue     // takes the log, and is closed by who made it
}

// A SettingsError says that svcproxy.toml cannot be used.
type SettingsError []source.Fault

// Error has one fault a line.
func (e SettingsError) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// A daemon is all that runs, and connects its parts.
type daemon struct {
	Options
	log    *slog.Logger
	claims *claims

	settings *settingsWatcher
	host     *host
	mode     *modeSwitch
	sources  []source.Source // that settings ask for
	features []*featureWarner
	loop     *proxier.Loop

	conditions *endpointConditions
	announcing *announcing
	doubts     *doubter
	drops      *dropWatch
	report     *reporter
	http       *httpParts
	systemd    *systemd
}

// Run works until ctx ends, and leaves the kernel as it is.
func Run(ctx context.Context, o Options) error {
	d, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer d.end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.claims.socket.Serve(ctx, d.log, d.routes()); return nil })
	g.Go(func() error { return d.http.server.Run(ctx) })
	for _, s := range d.sources {
		g.Go(func() error {
			return untilEnd(ctx, func() error { return s.Run(ctx, sink{d.loop, d.features}) })
		})
	}
	g.Go(func() error {
		defer close(d.mode.loopEnded)
		return untilEnd(ctx, func() error { return unlessDone(ctx, d.loop.Run(ctx)) })
	})
	g.Go(func() error { return untilEnd(ctx, func() error { d.inspectHost(ctx); return nil }) })
	g.Go(func() error { links.Watch(ctx, d.log, d.host.lookAtAddresses); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.settings.follow(ctx); return nil }) })
	g.Go(func() error { d.systemd.tell(ctx); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { return d.mode.follow(ctx) }) })
	g.Go(func() error { saveMemory(ctx, d.loop.Ready()); return nil })
	g.Go(func() error { d.doubts.tell(ctx); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.drops.run(ctx); return nil }) })
	g.Go(func() error { d.http.traffic.Run(ctx); return nil })
	g.Go(func() error {
		return untilEnd(ctx, func() error { return unlessDone(ctx, d.conditions.checker.Run(ctx)) })
	})
	g.Go(func() error { return d.conditions.keeper.Run(ctx) })
	g.Go(func() error { return untilEnd(ctx, func() error { return d.conditions.keeper.Keep(ctx) }) })
	g.Go(func() error { return untilEnd(ctx, func() error { d.announcing.Run(ctx, d.loop.Ready()); return nil }) })
	g.Go(func() error { d.announcing.neighbours.run(ctx); return nil })
	return g.Wait()
}

// endPatience is how long a disk that does not answer can keep svcproxy from ending,
// half of what all of that may take.
const endPatience = 500 * time.Millisecond

// untilEnd does work that ends with ctx, or soon after: it is not waited for any longer
// when it hangs on a disk, as that of a file server that is gone, or on a program that does.
func untilEnd(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(endPatience):
		return nil
	}
}

// end gives up what outlives the goroutines of Run.
func (d *daemon) end() {
	if d.mode.foreign != nil {
		d.mode.foreign.stop()
	}
	d.claims.close()
}

// unlessDone returns err, or nil when it is only that ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// start makes all parts. Each step makes fields that the next ones use:
//
//	start itself   Options, settings, log, claims (without socket)
//	connectParts   host, systemd (without loop and counter), mode (without active), features, doubts, drops
//	build          mode.active; of the host, addrs and node; after wire, claims.socket
//	  wire         http, sources, conditions, announcing, loop, mode.foreign, report; the rest of systemd
func start(ctx context.Context, o Options) (*daemon, error) {
	d, started := &daemon{Options: o}, time.Now()
	d.settings = &settingsWatcher{configDir: o.ConfigDir, stateDir: o.StateDir, load: o.Load, asked: o.Reload}
	s, err := d.settings.open()
	if err != nil {
		return nil, err
	}
	d.log, d.settings.level = newLog(o.Stderr, s.Log)
	if d.claims, err = claim(o, d.log); err != nil {
		return nil, err
	}
	d.connectParts()
	if err := d.build(ctx, started); err != nil {
		if d.mode.active != nil {
			d.mode.closeMode(d.mode.active)
		}
		d.end()
		return nil, err
	}
	return d, nil
}

// build makes the way of a change, from source to kernel. What ends with Run comes last.
func (d *daemon) build(ctx context.Context, started time.Time) error {
	err := d.mode.openFirst(ctx)
	if err != nil {
		return err
	}
	if d.host.addrs, err = firstAddresses(ctx); err != nil {
		return err
	}
	fixed := d.settings.fixed
	d.host.node = node.Build(fixed, d.host.addrs)
	d.wire(started)
	if d.claims.socket, err = control.Listen(d.RunDir); err != nil {
		return err
	}
	d.log.Info("starting", "version", d.Version, "mode", d.mode.active.Name, "why", d.mode.active.why, "config_dir", d.ConfigDir, "node", d.host.node.Name)
	d.settings.begin(ctx)
	for _, w := range slices.Concat(d.claims.namespace.Warnings(), d.mode.active.missing()) {
		d.log.Warn(w)
	}
	d.mode.sysctls = hostsetup.VerifySysctls(fixed, d.mode.active.Mode)
	return nil
}

// inspectHost removes what killed traces left, and logs what is wrong with this host. It asks programs and the
// kernel, which may hang, and nothing else waits for it.
func (d *daemon) inspectHost(ctx context.Context) {
	for _, w := range hostsetup.Verify(ctx, d.settings.fixed, d.mode.current().Mode) {
		d.log.Warn(w)
	}
	removeTraces(ctx, d.log)
}

// connectParts makes the parts that need no kernel, and what they hand on.
func (d *daemon) connectParts() {
	w := d.settings
	w.log, w.everything, w.changed = d.log, d.reload, d.use
	d.host = &host{log: d.log, settings: w.current, changed: d.useNode, several: several(w.fixed)}
	d.systemd = &systemd{notify: d.Notify, watch: d.Watch, line: &statusLine{notify: d.Notify}}
	d.mode = &modeSwitch{log: d.log, stateDir: d.StateDir, fixed: w.fixed, settings: w.current, tell: d.systemd.line.setMode}
	mode := func() modes.Mode { return d.mode.current().Mode }
	d.features = []*featureWarner{newAffinity(d.log, mode), newTakeover(d.log, mode)}
	d.doubts = &doubter{log: d.log, doubtful: make(chan struct{}, 1)}
	d.drops = &dropWatch{log: d.log, total: dropped}
}

// wire makes the parts that need the mode and the node, and connects all.
func (d *daemon) wire(started time.Time) {
	names := d.openParts()
	s := d.settings.fixed
	d.loop = d.newLoop(names)
	d.doubts.loop, d.mode.loop, d.systemd.loop = d.loop, d.loop, d.loop
	d.http.traffic = newTraffic(d.loop, d.log, s)
	d.mode.changed = func() { each(d.sources, revalidator.Revalidate) } // modes differ in what they can do
	d.mode.foreign = &foreignChanges{log: d.log, metrics: d.http.metrics, fixed: s, contention: disturbances(d.loop)}
	d.report = d.newReporter(started)
	d.systemd.counter = newCounter(&counter{
		loop: d.loop, keeper: d.conditions.keeper, doubts: d.doubts, settings: d.settings, sources: d.sources, warn: d.report.warnings,
	})
	d.connectMetrics()
	drains := d.conditions.keeper.Drains()
	d.http.health.Watch(d.loop)
	d.http.health.OnDrain(drains.Node)
	d.loop.DrainHost(drains.Node() != nil)
}

// openParts makes the parts that the Loop needs, and returns the names of its sources.
func (d *daemon) openParts() (sources []string) {
	s := d.settings.fixed
	d.http = &httpParts{metrics: healthz.NewMetrics(d.Version), health: healthz.NewHealth()}
	pages := kubeProxyPages{mode: d.mode, settings: d.settings}
	d.http.server = healthz.NewServer(d.http.handlers(s.HTTPAddress, s.MetricsAddress, pages), d.http.health, d.log)
	d.http.server.SetNode(d.host.node)
	d.host.eligible = d.http.health.SetEligible
	sources = d.openSources()
	d.connectConditions()
	d.connectAnnouncer()
	return sources
}

// connectMetrics has metrics ask the parts.
func (d *daemon) connectMetrics() {
	m, families := d.http.metrics, node.Families(d.settings.fixed)
	m.Register(d.http.traffic)
	m.Follow(families...)
	m.WatchCounts(d.systemd.counter.now, families...)
	m.WatchStalls(func() []proxier.Stall { return append(d.mode.stalls(), d.loop.Stalls()...) })
	m.WatchChecks(answersOf(d.conditions.checker))
	m.WatchAnnounced(func() healthz.Announced { return d.announcing.counts(d.loop.Announced(nil)) })
	if faults, _ := d.settings.pending(); source.FirstError(faults) == nil {
		m.Reloaded(time.Now())
	}
}

func (d *daemon) newLoop(sources []string) *proxier.Loop {
	s := d.settings.fixed
	limits := s.Limits.Products()
	return proxier.NewLoop(proxier.Config{
		Backends: d.mode.active.proxies(), Flows: connections{}, Node: d.host.node, Reserved: node.Reserved(s), Limits: &limits,
		Sources: sources, MinInterval: s.Sync.MinInterval, LookInterval: s.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log, Listening: d.doubts.listening, Router: explain.Router,
		OnQueued:     d.http.metrics.Queued,
		OnSync:       d.synced,
		OnHolds:      func(proxier.Family) { d.mode.familyHolds() },
		OnDrop:       d.http.health.Dropped,
		OnNodeHealth: d.http.server.SetNodeHealth,
		OnAccept:     d.accepted,
		OnFlows:      d.http.metrics.FlowsLooked,

		Conditions: d.conditions.keeper, Announcer: d.announcing.Announcer,
	})
}

// synced is told of each sync.
func (d *daemon) synced(r proxier.SyncResult) {
	d.http.health.Synced(r)
	d.http.metrics.Synced(r)
	if r.Err != nil {
		d.http.metrics.SyncFailed(r, failureOf(d.mode.current().Mode, r.Err))
	}
	if !r.Queued.IsZero() && r.Err == nil {
		d.doubts.doubt()
	}
}

// accepted is told of files that were taken over.
func (d *daemon) accepted(units []source.Unit) {
	d.http.metrics.Reloaded(time.Now())
	each(d.sources, func(s accepter) { s.Accepted(units) })
}

// use takes over settings as far as that can be done without a restart.
func (d *daemon) use(now configs.Settings, modeMayChange bool) {
	d.http.metrics.Reloaded(time.Now())
	d.loop.SetIntervals(now.Sync.MinInterval, now.Sync.ResyncInterval)
	guard(d.sources, now)
	d.http.traffic.Want(wantedTraffic(now))
	decides := d.announcing.use(now.BGP)
	d.loop.SetReserved(node.Reserved(now))
	if decides {
		each(d.sources, revalidator.Revalidate)
	}
	d.host.setNode()
	if modeMayChange {
		d.mode.want(now)
	}
}

// useNode takes over what this host is now.
func (d *daemon) useNode(n *proxier.Node) {
	d.http.server.SetNode(n)
	d.loop.SetNode(n)
	d.doubts.doubt()
}

// reload reads settings and services again, and compares all with the kernel. systemd
// is not told of it before the first sync: READY=1 would say that services are held.
func (d *daemon) reload(ctx context.Context) {
	d.log.Info("reading everything again")
	if d.http.health.Ready() {
		d.Notify(reloading())
		defer func() {
			if ctx.Err() == nil {
				d.Notify("READY=1")
			}
		}()
	}
	if !d.settings.read(ctx) {
		return
	}
	d.mode.retry()
	d.announcing.Reload()
	each(d.sources, reloader.Reload)
	d.loop.Resync()
	if err := d.host.lookAtAddresses(); err != nil {
		d.log.Warn("the addresses of this host stay as last read", "err", err)
	}
	for _, w := range hostsetup.Verify(ctx, d.settings.current(), d.mode.current().Mode) {
		d.log.Warn(w)
	}
}
