// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/cmd/internal/explain"
	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/healthz"
	"svcproxy.dev/svcproxy/proxier/traffic"
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
	*host
	log   *slog.Logger
	level *slog.LevelVar
	fixed configs.Settings // as they were at start

	started time.Time

	claim   *control.NamespaceClaim
	state   *os.File // the lock of the state directory
	control *control.Server

	sources  []source.Source // that settings ask for
	loop     *proxier.Loop
	settings *settingsWatcher
	mode     *modeSwitch
	affinity *census
	takeover *census
	doubts   *doubter
	storage  *storage
	counter  *counter
	line     *statusLine
	traffic  *traffic.Collector
	report   *reporter

	checker *healthcheck.Checker
	keeper  *conditions.Keeper

	announcer  *announcer.Announcer
	neighbours *neighbours
	noBGP      string // why there is no BGP, as service files were told

	health  *healthz.Health
	metrics *healthz.Metrics
	server  *healthz.Server
}

// Run works until ctx ends, and leaves the kernel as it is.
func Run(ctx context.Context, o Options) error {
	d, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer d.end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.control.Serve(ctx, d.log, d.routes()); return nil })
	g.Go(func() error { return d.server.Run(ctx) })
	for _, s := range d.sources {
		g.Go(func() error {
			return untilEnd(ctx, func() error { return s.Run(ctx, sink{d.loop, d.affinity, d.takeover}) })
		})
	}
	g.Go(func() error {
		defer close(d.mode.loopEnded)
		return unlessDone(ctx, d.loop.Run(ctx))
	})
	g.Go(func() error { links.Watch(ctx, d.log, d.lookAtAddresses); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.settings.follow(ctx); return nil }) })
	g.Go(func() error { d.tellSystemd(ctx); return nil })
	g.Go(func() error { d.mode.follow(ctx); return nil })
	g.Go(func() error { d.saveMemory(ctx); return nil })
	g.Go(func() error { d.doubts.tell(ctx); return nil })
	g.Go(func() error { d.traffic.Run(ctx); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { return unlessDone(ctx, d.checker.Run(ctx)) }) })
	g.Go(func() error { return d.keeper.Run(ctx) })
	g.Go(func() error { return untilEnd(ctx, func() error { return d.keeper.Keep(ctx) }) })
	g.Go(func() error { return untilEnd(ctx, func() error { d.announcer.Run(ctx, d.loop.Ready()); return nil }) })
	g.Go(func() error { d.neighbours.run(ctx); return nil })
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
	_, _ = d.claim.Close(), d.state.Close() // all is done that can fail
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
//	start itself   Options, started, settings, fixed, log, level, claim, state (nil: not claimed)
//	connectParts   host, line, mode (without active), affinity, takeover, doubts
//	build          mode.active; of the host, addrs and node; after wire, control
//	  wire         metrics, health, server, sources, checker, keeper, announcer, neighbours, noBGP,
//	               loop, traffic, mode.foreign, storage, report, counter
func start(ctx context.Context, o Options) (*daemon, error) {
	d := &daemon{Options: o, started: time.Now()}
	d.settings = &settingsWatcher{configDir: o.ConfigDir, stateDir: o.StateDir, load: o.Load, asked: o.Reload}
	s, err := d.settings.open()
	if err != nil {
		return nil, err
	}
	d.fixed = s
	d.log, d.level = newLog(o.Stderr, s.Log)
	if d.claim, err = d.claimNamespace(); err != nil {
		return nil, err
	}
	if d.state, err = control.ClaimState(d.StateDir); errors.Is(err, control.ErrClaimed) {
		return nil, errors.Join(err, d.claim.Close())
	} else if err != nil { // read-only, say, or full: services matter more
		d.log.Warn("another svcproxy that uses this state directory will not be refused", "err", err)
	}
	d.connectParts()
	if err := d.build(ctx); err != nil {
		if d.mode.active != nil {
			d.mode.closeMode(d.mode.active)
		}
		d.end()
		return nil, err
	}
	return d, nil
}

// claimNamespace makes this the one daemon of the network namespace, before
// anything of its kernel is looked at. Two would undo each other's work forever.
func (d *daemon) claimNamespace() (*control.NamespaceClaim, error) {
	self := control.Holder{PID: os.Getpid(), Version: d.Version, ConfigDir: d.ConfigDir, StateDir: d.StateDir, RunDir: d.RunDir}
	for _, dir := range []*string{&self.ConfigDir, &self.StateDir, &self.RunDir} {
		if abs, err := filepath.Abs(*dir); err == nil {
			*dir = abs
		}
	}
	return control.ClaimNamespace(d.Namespace, self)
}

// build makes the way of a change, from source to kernel. What ends with Run comes last.
func (d *daemon) build(ctx context.Context) error {
	err := d.mode.openFirst(ctx)
	if err != nil {
		return err
	}
	if d.addrs, err = firstAddresses(ctx); err != nil {
		return err
	}
	d.node = node.Build(d.fixed, d.addrs)
	d.wire()
	if d.control, err = control.Listen(d.RunDir); err != nil {
		return err
	}
	d.log.Info("starting", "version", d.Version, "mode", d.mode.active.Name, "why", d.mode.active.why, "config_dir", d.ConfigDir, "node", d.node.Name)
	removeTraces(ctx, d.log)
	d.settings.begin(ctx)
	for _, w := range slices.Concat(d.claim.Warnings(), d.mode.active.missing, hostsetup.Verify(ctx, d.fixed, d.mode.active.Mode)) {
		d.log.Warn(w)
	}
	d.mode.sysctls = hostsetup.VerifySysctls(d.fixed, d.mode.active.Mode)
	return nil
}

// connectParts makes the parts that need no kernel, and what they hand on.
func (d *daemon) connectParts() {
	w := d.settings
	w.log, w.everything, w.changed = d.log, d.reload, d.use
	d.host = &host{log: d.log, settings: w.current, changed: d.useNode}
	d.line = &statusLine{notify: d.Notify}
	d.mode = &modeSwitch{log: d.log, stateDir: d.StateDir, fixed: d.fixed, settings: w.current, tell: d.line.setMode}
	mode := func() modes.Mode { return d.mode.current().Mode }
	d.affinity, d.takeover = newAffinity(d.log, mode), newTakeover(d.log, mode)
	d.doubts = &doubter{log: d.log, doubtful: make(chan struct{}, 1)}
}

// wire makes the parts that need the mode and the node, and connects all.
func (d *daemon) wire() {
	s := d.fixed
	d.metrics = healthz.NewMetrics(d.Version)
	d.health = healthz.NewHealth()
	d.server = healthz.NewServer(d.handlers(s.HTTPAddress, s.MetricsAddress), d.health, d.log)
	d.server.SetNode(d.node)
	names := d.openSources()
	d.connectConditions()
	d.connectAnnouncer()
	d.loop = d.newLoop(names)
	d.traffic = d.newTraffic()
	d.doubts.loop, d.mode.loop = d.loop, d.loop
	d.mode.changed = func() { each(d.sources, revalidator.Revalidate) } // modes differ in what they can do
	d.mode.foreign = &foreignChanges{log: d.log, metrics: d.metrics, fixed: s, contention: disturbances(d.loop)}
	d.storage = newStorage(&storage{dir: d.StateDir, claimed: d.state != nil, settings: d.settings, statfs: unix.Statfs, conditions: d.keeper.Problem})
	d.report = d.newReporter()
	d.counter = newCounter(&counter{
		loop: d.loop, keeper: d.keeper, doubts: d.doubts, settings: d.settings, sources: d.sources, warn: d.report.warnings,
	})
	d.metrics.Follow(node.Families(s)...)
	d.metrics.WatchCounts(d.counter.now, node.Families(s)...)
	d.metrics.WatchChecks(answersOf(d.checker))
	d.metrics.WatchAnnounced(d.announcedNow)
	if faults, _ := d.settings.pending(); source.FirstError(faults) == nil {
		d.metrics.Reloaded(time.Now())
	}
	d.health.Watch(d.loop)
	d.health.OnDrain(d.keeper.Drains().Node)
	d.loop.DrainHost(d.keeper.Drains().Node() != nil)
}

func (d *daemon) newLoop(sources []string) *proxier.Loop {
	s := d.fixed
	return proxier.NewLoop(proxier.Config{
		Backends: d.mode.active.proxies(), Flows: flows{}, Node: d.node, Reserved: node.Reserved(s),
		Sources: sources, MinInterval: s.Sync.MinInterval, LookInterval: s.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log, Listening: d.doubts.listening, Router: explain.Router,
		OnQueued: d.metrics.Queued,
		OnSync:   d.synced,
		OnHolds:  func(proxier.Family) { d.mode.familyHolds() },
		OnDrop:   d.health.Dropped,
		OnHealth: d.server.SetChecks,
		OnAccept: d.accepted,
		OnFlows:  d.metrics.FlowsLooked,

		Conditions: d.keeper, Announcer: d.announcer,
	})
}

// synced is told of each sync.
func (d *daemon) synced(r proxier.SyncResult) {
	d.health.Synced(r)
	d.metrics.Synced(r)
	if r.Err != nil {
		d.metrics.SyncFailed(r, failureOf(d.mode.current().Mode, r.Err))
	}
	if !r.Queued.IsZero() && r.Err == nil {
		d.doubts.doubt()
	}
}

// accepted is told of files that were taken over.
func (d *daemon) accepted(units []source.Unit) {
	d.metrics.Reloaded(time.Now())
	each(d.sources, func(s accepter) { s.Accepted(units) })
}

// use takes over settings as far as that can be done without a restart.
func (d *daemon) use(now configs.Settings, choice bool) {
	d.metrics.Reloaded(time.Now())
	setLevel(d.level, now.Log.Level)
	d.loop.SetIntervals(now.Sync.MinInterval, now.Sync.ResyncInterval)
	guard(d.sources, now)
	d.traffic.Want(wantedTraffic(now))
	d.useAnnounced(now)
	d.setNode()
	if choice {
		d.mode.want(now)
	}
}

// useNode takes over what this host is now.
func (d *daemon) useNode(n *proxier.Node) {
	d.server.SetNode(n)
	d.loop.SetNode(n)
	d.doubts.doubt()
}

// reload reads settings and services again, and compares all with the kernel. systemd
// is not told of it before the first sync: READY=1 would say that services are held.
func (d *daemon) reload(ctx context.Context) {
	d.log.Info("reading everything again")
	if d.health.Ready() {
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
	d.announcer.Reload()
	each(d.sources, reloader.Reload)
	d.loop.Resync()
	if err := d.lookAtAddresses(); err != nil {
		d.log.Warn("the addresses of this host stay as last read", "err", err)
	}
	for _, w := range hostsetup.Verify(ctx, d.settings.current(), d.mode.current().Mode) {
		d.log.Warn(w)
	}
}
