// Package daemon is svcproxy run: it puts source, proxier, the listeners and
// the control socket together, and follows settings and addresses of the host.
//
// start makes all parts in the order in which they need each other; Run has them work, a goroutine each.
package daemon

import (
	"context"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/settings"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
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

// A daemon is all that runs, and connects its parts.
type daemon struct {
	Options
	log   *slog.Logger
	locks *locks

	settings *settings.Watcher
	host     *node.Host
	mode     *modeswitch.Switch
	sources  []source.Source // that settings ask for
	features []*hostsetup.FeatureWarner
	loop     *loop.Loop

	checker    *healthcheck.Checker
	keeper     *conditions.Keeper
	announcing *announcing
	doubts     *doubter
	drops      *hostsetup.DropWatch
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
	g.Go(func() error { d.locks.socket.Serve(ctx, d.log, d.routes()); return nil })
	g.Go(func() error { return d.http.server.Run(ctx) })
	for _, s := range d.sources {
		g.Go(func() error {
			return untilEnd(ctx, func() error { return s.Run(ctx, sink{d.loop, d.features}) })
		})
	}
	g.Go(func() error {
		defer d.mode.LoopEnded()
		return untilEnd(ctx, func() error { return unlessDone(ctx, d.loop.Run(ctx)) })
	})
	g.Go(func() error { return untilEnd(ctx, func() error { d.inspectHost(ctx); return nil }) })
	g.Go(func() error { links.Watch(ctx, d.log, d.host.LookAtAddresses); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.settings.Follow(ctx); return nil }) })
	g.Go(func() error { d.systemd.run(ctx); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { return d.mode.Follow(ctx) }) })
	g.Go(func() error { saveMemory(ctx, d.loop.Ready()); return nil })
	g.Go(func() error { d.doubts.run(ctx); return nil })
	g.Go(func() error { return untilEnd(ctx, func() error { d.drops.Run(ctx); return nil }) })
	g.Go(func() error { d.http.traffic.Run(ctx); return nil })
	g.Go(func() error {
		return untilEnd(ctx, func() error { return unlessDone(ctx, d.checker.Run(ctx)) })
	})
	g.Go(func() error { return d.keeper.Run(ctx) })
	g.Go(func() error { return untilEnd(ctx, func() error { return d.keeper.Keep(ctx) }) })
	g.Go(func() error { return untilEnd(ctx, func() error { d.announcing.Run(ctx, d.loop.Ready()); return nil }) })
	g.Go(func() error { d.announcing.neighbours.run(ctx); return nil })
	return g.Wait()
}

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
	case <-time.After(modeswitch.EndPatience):
		return nil
	}
}

// end gives up what outlives the goroutines of Run.
func (d *daemon) end() {
	if d.mode != nil {
		d.mode.StopRepairs()
	}
	d.locks.close()
}

// unlessDone returns err, or nil when it is only that ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// inspectHost removes what killed traces left, and logs what is wrong with this host. It asks programs and the
// kernel, which may hang, and nothing else waits for it.
func (d *daemon) inspectHost(ctx context.Context) {
	for _, w := range hostsetup.Verify(ctx, d.settings.Fixed, d.mode.Current().Mode) {
		d.log.Warn(w)
	}
	removeTraces(ctx, d.log)
}

// A sink counts what services need of this host, on their way to the Loop.
type sink struct {
	*loop.Loop
	features []*hostsetup.FeatureWarner
}

func (s sink) Apply(ch source.Changes) {
	for _, f := range s.features {
		f.Apply(ch)
	}
	s.Loop.Apply(ch)
}

// use takes over settings as far as that can be done without a restart.
func (d *daemon) use(was, now configs.Settings) {
	d.http.metrics.Reloaded(time.Now())
	d.loop.SetIntervals(now.Sync.MinInterval, now.Sync.ResyncInterval)
	sources.Guard(d.sources, now)
	d.http.traffic.Want(wantedTraffic(now))
	decides := d.announcing.use(now.BGP)
	d.loop.SetReserved(node.Reserved(now))
	if decides {
		sources.Each(d.sources, sources.Revalidator.Revalidate)
	}
	d.host.SetNode()
	if !modeswitch.SameChoice(was, now) {
		d.mode.Want(now)
	}
}

// useNode takes over what this host is now.
func (d *daemon) useNode(n *policy.Node) {
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
	if !d.settings.Read(ctx) {
		return
	}
	d.mode.Retry()
	d.announcing.Reload()
	sources.Each(d.sources, sources.Reloader.Reload)
	d.loop.FullSync()
	if err := d.host.LookAtAddresses(); err != nil {
		d.log.Warn("cannot read the addresses of this host again; keeping the last ones", "err", err)
	}
	for _, w := range hostsetup.Verify(ctx, d.settings.Current(), d.mode.Current().Mode) {
		d.log.Warn(w)
	}
}
