package daemon

import (
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/sources"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An observer has the parts of a daemon hear what its Loop does.
type observer struct{ *daemon }

// Queued implements loop.Observer.
func (o observer) Queued(fam policy.Family, at time.Time) { o.http.metrics.Queued(fam, at) }

// Synced implements loop.Observer.
func (o observer) Synced(r loop.SyncResult) {
	o.http.health.Synced(r)
	o.http.metrics.Synced(r)
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
