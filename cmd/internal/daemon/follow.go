package daemon

import (
	"context"
	"reflect"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modeswitch"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/cmd/internal/trace"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// inspectHost removes what killed traces left, and logs what is wrong with this host. It asks programs and the
// kernel, which may hang, and nothing else waits for it.
func (d *daemon) inspectHost(ctx context.Context) {
	for _, w := range hostsetup.Verify(ctx, d.settings.Fixed, d.mode.Current().Mode) {
		d.log.Warn(w)
	}
	if err := trace.Remove(ctx); err != nil {
		d.log.Warn("a killed trace may have left rules in the kernel", "err", err)
	}
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
	d.http.traffic.Want(wantedTraffic(now))
	d.loop.SetNamed(now.Metrics.MaxServices)
	d.announcer.Use(now.BGP)
	d.notifier.Use(now.Notify)
	d.loop.SetReserved(node.Reserved(now))
	if was.BGP.NoBGP() != now.BGP.NoBGP() || !reflect.DeepEqual(was.Owners, now.Owners) { // service files were judged by these
		sources.Each(d.sources, sources.Revalidator.Revalidate)
	}
	sources.Guard(d.sources, now) // what was held is judged by the new shares
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
	d.announcer.Reload()
	sources.Each(d.sources, sources.Reloader.Reload)
	if len(d.settings.Current().Owners) > 0 { // users may have come, or have another number
		sources.Each(d.sources, sources.Revalidator.Revalidate)
	}
	d.loop.FullSync()
	if err := d.host.LookAtAddresses(); err != nil {
		d.log.Warn("cannot read the addresses of this host again; keeping the last ones", "err", err)
	}
	for _, w := range hostsetup.Verify(ctx, d.settings.Current(), d.mode.Current().Mode) {
		d.log.Warn(w)
	}
}

// An observer has the parts of a daemon hear what its Loop does.
type observer struct{ *daemon }

// Queued implements loop.Observer.
func (o observer) Queued(fam policy.Family, at time.Time) { o.http.metrics.Queued(fam, at) }

// Synced implements loop.Observer.
func (o observer) Synced(r loop.SyncResult) {
	o.http.health.Synced(r)
	o.http.metrics.Synced(r)
	o.changes.Repaired(r)
	if r.Err != nil {
		o.http.metrics.SyncFailed(r, failureOf(o.mode.Current().Mode, r.Err))
	}
	if !r.Queued.IsZero() && r.Err == nil {
		o.doubts.doubt()
	}
}

// Holds implements loop.Observer.
func (o observer) Holds(policy.Family) { o.mode.FamilyHolds() }

// Dropped implements loop.Observer.
func (o observer) Dropped(fam policy.Family) { o.http.health.Dropped(fam) }

// NodeHealth implements loop.Observer.
func (o observer) NodeHealth(list []loop.NodeHealth) { o.http.server.SetNodeHealth(list) }

// Accepted implements loop.Observer.
func (o observer) Accepted(units []source.Unit) {
	o.http.metrics.Reloaded(time.Now())
	sources.Each(o.sources, func(s sources.Accepter) { s.Accepted(units) })
}

// Looked implements loop.Observer.
func (o observer) Looked(fam policy.Family, removed int, took time.Duration) {
	o.http.metrics.FlowsLooked(fam, removed, took)
}
