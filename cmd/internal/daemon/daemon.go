// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
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
	"svcproxy/proxier/healthcheck"
	"svcproxy/source"
	"svcproxy/source/file"
)

// syncTimeout is how long one sync may take. The first of 10,000 services takes
// some 10 s with iptables-nft; this is far more, and less than /healthz waits.
const syncTimeout = time.Minute

// Options say what a daemon works on.
type Options struct {
	ConfigDir, StateDir, RunDir string
	Version                     string

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
	mode    string
	fixed   configs.Settings // as they were at start
	missing []string         // families left out, and why
	text    []byte           // of svcproxy.toml, as last looked at

	backends map[proxier.Family]backend
	control  *control.Server
	files    *file.Source
	loop     *proxier.Loop
	health   *healthcheck.Health
	server   *healthcheck.Server

	mu       sync.Mutex
	settings configs.Settings // in use
	faults   []source.Fault   // of the present svcproxy.toml
	restart  []string         // settings that changed but are only read at start
	addrs    []links.Addr
	node     *proxier.Node
	affinity bool // some service had session affinity
}

// Run works until ctx ends, and leaves the kernel as it is.
func Run(ctx context.Context, o Options) error {
	d, err := start(ctx, o)
	if err != nil {
		return err
	}
	defer d.close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.control.Serve(ctx, d.status) })
	g.Go(func() error { return d.server.Run(ctx) })
	g.Go(func() error { return d.files.Run(ctx, sink{d.loop, d}) })
	g.Go(func() error { return unlessDone(ctx, d.loop.Run(ctx)) })
	g.Go(func() error { links.Watch(ctx, d.log, d.lookAtAddresses); return nil })
	g.Go(func() error { d.followSettings(ctx); return nil })
	g.Go(func() error { d.tellSystemd(ctx); return nil })
	g.Go(func() error { d.removeLeftovers(ctx); return nil })
	return g.Wait()
}

// unlessDone returns err, or nil when it is only that ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// close gives up what is open. The kernel stays as it is.
func (d *daemon) close() {
	for fam, b := range d.backends {
		if err := b.Close(); err != nil {
			d.log.Warn("closing the backend", "family", fam, "err", err)
		}
	}
}

// start makes all parts.
func start(ctx context.Context, o Options) (*daemon, error) {
	d := &daemon{Options: o, started: time.Now()}
	d.text, _ = contents(d.path()) // Load says what is wrong with it
	s, faults, err := o.Load(d.path())
	if err != nil {
		return nil, err
	}
	if fatal(faults) {
		return nil, SettingsError(faults)
	}
	d.fixed, d.settings, d.faults = s, s, faults
	d.log, d.level = newLog(o.Stderr, s.Log)
	if err := d.build(ctx); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// build makes the way of a change, from source to kernel. What ends with Run comes last.
func (d *daemon) build(ctx context.Context) error {
	name, why, err := Mode(d.fixed)
	if err != nil {
		return err
	}
	d.mode = name
	if err := os.MkdirAll(d.StateDir, 0o755); err != nil {
		return fmt.Errorf("making state directory: %w", err)
	}
	if d.backends, d.missing, err = open(ctx, name, d.fixed); err != nil {
		return err
	}
	if d.addrs, err = links.Addrs(); err != nil {
		return err
	}
	d.node = node.Build(d.fixed, d.addrs)
	d.wire()
	if d.control, err = control.Listen(d.RunDir); err != nil {
		return err
	}
	d.log.Info("starting", "version", d.Version, "mode", name, "why", why, "config_dir", d.ConfigDir, "node", d.node.Name)
	for _, f := range d.faults {
		d.log.Warn(f.String())
	}
	for _, w := range append(d.missing, hostsetup.Verify(d.fixed, d.mode)...) {
		d.log.Warn(w)
	}
	return nil
}

// wire makes what works for the node, and tells each of the other.
func (d *daemon) wire() {
	s := d.fixed
	backends := make(map[proxier.Family]proxier.Backend)
	for fam, b := range d.backends {
		backends[fam] = b
	}
	metrics := healthcheck.NewMetrics(d.Version)
	d.health = healthcheck.NewHealth()
	d.server = healthcheck.NewServer(s.HTTPAddress, healthcheck.Handler(d.health, metrics), d.health, d.log)
	d.server.SetAddrs(d.node.NodePortAddrs)
	d.files = file.New(file.Options{Dir: d.ConfigDir, StateDir: d.StateDir, Log: d.log})
	d.loop = proxier.NewLoop(proxier.Config{
		Backends: backends, Flows: flows{}, Node: d.node, Reserved: node.Reserved(s),
		Sources: s.Sources, MinInterval: s.Sync.MinInterval, ResyncInterval: s.Sync.ResyncInterval,
		SyncTimeout: syncTimeout, Log: d.log,
		OnSync:   func(r proxier.SyncResult) { d.health.Synced(r); metrics.Synced(r) },
		OnHealth: d.server.SetChecks,
		OnAccept: d.files.Accepted,
	})
	d.health.Watch(d.loop)
}

// flows is what the Loop needs of connection tracking.
type flows struct{}

func (flows) Prune(ctx context.Context, fam proxier.Family, stale func(proxier.Flow) bool) (int, error) {
	return conntrack.PruneUDP(ctx, fam == proxier.IPv6, func(f conntrack.Flow) bool { return stale(proxier.Flow(f)) })
}

// A sink notes whether services have session affinity on their way to the Loop.
type sink struct {
	*proxier.Loop
	d *daemon
}

func (s sink) Apply(ch source.Changes) {
	for _, u := range ch.Set {
		for _, svc := range u.Services {
			if svc.Affinity > 0 {
				s.d.hasAffinity()
			}
		}
	}
	s.Loop.Apply(ch)
}

// hasAffinity warns once where this host forgets clients too early.
func (d *daemon) hasAffinity() {
	d.mu.Lock()
	first := !d.affinity
	d.affinity = true
	d.mu.Unlock()
	if w := hostsetup.VerifyAffinity(d.mode); first && w != "" {
		d.log.Warn(w)
	}
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
