// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy/cmd/internal/control"
	"svcproxy/cmd/internal/hostsetup"
	"svcproxy/cmd/internal/node"
	"svcproxy/configs"
	"svcproxy/netutil/conntrack"
	"svcproxy/netutil/links"
	"svcproxy/proxier"
	"svcproxy/proxier/healthz"
	"svcproxy/source"
	"svcproxy/source/file"
)

// syncTimeout is how long a part of a sync may take, see proxier.Progressed. All of
// 10,000 services take some 10 s with iptables-nft; this is far more, and less than
// /healthz waits.
const syncTimeout = time.Minute

// Options say what a daemon works on.
type Options struct {
	ConfigDir, StateDir, RunDir string
	Version                     string
	Namespace                   string // the name that one daemon of a network namespace has: control.NamespaceName

	// Load reads svcproxy.toml, and lays flags over it.
	Load func(path string) (configs.Settings, []source.Fault, error)

	Reload <-chan os.Signal   // read everything again
	Notify func(state string) // tells systemd
	Watch  time.Duration      // systemd wants a sign of life this often; 0: never
	Stderr io.Writer          // of the log
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

// A daemon is all that runs, and what it was made from.
type daemon struct {
	Options
	log     *slog.Logger
	level   *slog.LevelVar
	started time.Time
	fixed   configs.Settings // as they were at start
	text    []byte           // of svcproxy.toml, as last looked at
	stale   bool             // at start, the last good settings were used

	claim   *control.NamespaceClaim
	state   *os.File // the lock of the state directory
	control *control.Server
	files   *file.Source
	cluster source.Source // nil: none
	loop    *proxier.Loop
	health  *healthz.Health
	metrics *healthz.Metrics
	server  *healthz.Server

	modeWanted chan configs.Settings // the mode changed in these
	modeHolds  chan struct{}         // a family holds everything in its mode now
	loopEnded  chan struct{}         // closed when no backend is used any more

	taken familySet // of which clients of earlier runs were taken over

	contention map[disturbance]*proxier.Contention // over what is ours

	sysctls []string // what the log has said of settings of the kernel

	doubtful chan struct{} // services or addresses have changed
	deaf     sync.Once     // where processes listen is not known, and the log says so

	looking sync.Mutex // held from reading addresses until they are told; before mu

	mu       sync.Mutex
	kernel   *activeMode      // in use
	modeErr  error            // why it is not what settings ask for
	toldMode string           // what systemd was told of it
	left     []string         // what other modes made and cannot be removed yet, and why
	settings configs.Settings // in use
	faults   []source.Fault   // of the present svcproxy.toml
	restart  []string         // settings that changed but are only read at start
	addrs    []links.Addr
	node     *proxier.Node
	lists    lists               // of clients with session affinity
	member   *source.ClusterNode // what the cluster last said of this host; nil: nothing

	serviceCIDRs []netip.Prefix // as the cluster says
}

// Run works until ctx ends, and leaves the kernel as it is.
func Run(ctx context.Context, o Options) error {
	d, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer d.end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { d.control.Serve(ctx, d.log, d.status); return nil })
	g.Go(func() error { return d.server.Run(ctx) })
	for _, s := range d.sources() {
		g.Go(func() error { return untilEnd(ctx, func() error { return s.Run(ctx, sink{d.loop, d}) }) })
	}
	g.Go(func() error {
		defer close(d.loopEnded)
		return unlessDone(ctx, d.loop.Run(ctx))
	})
	g.Go(func() error { links.Watch(ctx, d.log, d.lookAtAddresses); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.followSettings(ctx); return nil }) })
	g.Go(func() error { d.tellSystemd(ctx); return nil })
	g.Go(func() error { d.followMode(ctx); return nil })
	g.Go(func() error { d.saveMemory(ctx); return nil })
	g.Go(func() error { d.tellDoubts(ctx); return nil })
	return g.Wait()
}

// endPatience is how long a disk that does not answer can keep svcproxy from ending,
// half of what all of that may take.
const endPatience = 500 * time.Millisecond

// untilEnd does work that ends with ctx, or soon after: it is not waited for any longer
// when it hangs on a disk, as that of a file server that is gone.
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
	for _, c := range d.contention {
		c.Stop()
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

// start makes all parts.
func start(ctx context.Context, o Options) (*daemon, error) {
	d := &daemon{Options: o, started: time.Now()}
	s, faults, err := d.firstSettings()
	if err != nil {
		return nil, err
	}
	d.fixed, d.settings, d.faults = s, s, faults
	d.log, d.level = newLog(o.Stderr, s.Log)
	if d.claim, err = d.claimNamespace(); err != nil {
		return nil, err
	}
	if d.state, err = control.ClaimState(d.StateDir); errors.Is(err, control.ErrClaimed) {
		return nil, errors.Join(err, d.claim.Close())
	} else if err != nil { // read-only, say, or full: services matter more
		d.log.Warn("another svcproxy that uses this state directory will not be refused", "err", err)
	}
	if err := d.build(ctx); err != nil {
		if d.kernel != nil {
			d.closeMode(d.kernel)
		}
		d.end()
		return nil, err
	}
	return d, nil
}

// claimNamespace makes this the one daemon of the network namespace, before
// anything of its kernel is looked at. Two would undo each other's work for ever.
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
	var err error
	if d.kernel, err = choose(ctx, d.openConfig(d.fixed)); err != nil {
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
	d.log.Info("starting", "version", d.Version, "mode", d.kernel.Name, "why", d.kernel.why, "config_dir", d.ConfigDir, "node", d.node.Name)
	for _, f := range d.faults {
		d.log.Warn(f.String())
	}
	if d.stale {
		d.log.Error("svcproxy.toml has faults: the last good one is used", "copy", d.lastGood())
		d.text = unknown
	} else {
		d.keep(ctx)
	}
	for _, w := range slices.Concat(d.claim.Warnings(), d.kernel.missing, hostsetup.Verify(ctx, d.fixed, d.kernel.Mode)) {
		d.log.Warn(w)
	}
	d.sysctls = hostsetup.VerifySysctls(d.fixed, d.kernel.Mode)
	return nil
}

// wire makes what works for the node, and tells each of the other.
func (d *daemon) wire() {
	s := d.fixed
	d.modeWanted, d.modeHolds = make(chan configs.Settings, 1), make(chan struct{}, 1)
	d.loopEnded, d.doubtful = make(chan struct{}), make(chan struct{}, 1)
	d.metrics = healthz.NewMetrics(d.Version)
	d.health = healthz.NewHealth()
	d.server = healthz.NewServer(d.handlers(s.HTTPAddress, s.MetricsAddress), d.health, d.log)
	d.server.SetAddrs(d.node.NodePortAddrs)
	d.files = file.New(file.Options{Dir: d.ConfigDir, StateDir: d.StateDir, Rules: d.rules(), Log: d.log})
	if slices.Contains(s.Sources, file.Name) {
		d.metrics.WatchTroubles(file.Name, d.files.Troubles)
	}
	d.loop = proxier.NewLoop(proxier.Config{
		Backends: d.kernel.proxies(), Flows: flows{}, Node: d.node, Reserved: node.Reserved(s),
		Sources: s.Sources, MinInterval: s.Sync.MinInterval, ResyncInterval: s.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log, Listening: d.listening,
		OnSync:   d.synced,
		OnHolds:  func(proxier.Family) { d.familyHolds() },
		OnDrop:   d.health.Dropped,
		OnHealth: d.server.SetChecks,
		OnAccept: d.files.Accepted,

		OnFlowsDeleted: d.metrics.FlowsDeleted,
	})
	d.contention = disturbances(d.loop)
	d.health.Watch(d.loop)
	d.wireCluster()
}

// flows is what the Loop needs of connection tracking.
type flows struct{}

func (flows) Prune(ctx context.Context, fam proxier.Family, q proxier.FlowQuery, stale func(proxier.Flow) bool) (int, error) {
	return conntrack.PruneUDP(ctx, fam == proxier.IPv6, conntrack.Query(q), func(f conntrack.Flow) bool { return stale(proxier.Flow(f)) })
}

// newLog returns the log that settings ask for. Both formats quote what could
// pass for another line.
func newLog(w io.Writer, s configs.Log) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	setLevel(level, s.Level)
	o := &slog.HandlerOptions{Level: level}
	if s.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), level
	}
	return slog.New(slog.NewTextHandler(w, o)), level
}

// setLevel takes what configs has checked; anything else leaves the level alone.
func setLevel(level *slog.LevelVar, name string) {
	_ = level.UnmarshalText([]byte(name))
}
