package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A family keeps one address family's backend in step, in a goroutine of its own, so
// that a slow or failing family holds up neither the other nor the Loop, which sends
// it orders. What arrives during a Sync waits for the next.
type family struct {
	fam    policy.Family
	cfg    *Config
	orders orders
	report func()       // tells the Loop that this family has news
	fatal  chan<- error // gets an ErrRestart

	questions chan planQuestion
	ended     chan struct{}  // closed when run has returned
	revision  *atomic.Uint64 // of what Counts counts

	backend proxier.Backend
	flows   []*flows.Worker
	desired desired // guarded by mu

	open   bool          // every source has been read
	full   bool          // the next Sync compares everything with the kernel
	dirty  bool          // there is something to sync
	broken bool          // foreign changes were found since the last Sync that succeeded
	causes []RepairCause // of repairs that are due

	triggers []time.Time // of changes not yet synced, see Loop.triggers

	minimum, lookEvery time.Duration // as Config.MinInterval and Config.LookInterval

	pace       pace
	lookout    lookout
	announcing announce.Ledger // guarded by mu
	telling    sync.Mutex      // held while the Announcer is told, so that it hears changes in their order

	mu   sync.RWMutex // held for writing by the goroutine while it changes desired or news
	news familyNews
}

// familyNews is what other goroutines may read of a family.
type familyNews struct {
	told     uint64 // the last order that is in the State
	held     uint64 // the last order that the kernel holds, with all before
	synced   uint64 // the same, except for large services that are not complete
	failures int    // Syncs that failed in a row
	good     time.Time
	took     time.Duration
	since    time.Time             // of the first failure in a row
	err      error                 // of the last Sync
	unsure   bool                  // Syncs fail since a foreign change, or since all of the kernel's rules were to change
	unserved *proxier.PartialError // what the last successful Sync could not make
	working  *progress             // of the Sync or Plan that runs; nil: none
	looking  *progress             // of the Look that runs; nil: none
}

func newFamily(fam policy.Family, backend proxier.Backend, node *policy.Node, cfg *Config, report func()) *family {
	f := &family{
		fam: fam, cfg: cfg, orders: newOrders(), report: report, backend: backend, desired: newDesired(fam, node),
		questions: make(chan planQuestion), ended: make(chan struct{}), revision: new(atomic.Uint64),
		lookout: newLookout(), announcing: announce.New(),
		flows: flows.NewWorkers(fam, flows.Config{Tracking: cfg.Flows, RunDir: cfg.RunDir, Log: cfg.Log, Looked: cfg.Observer.Looked}),
		full:  true, dirty: true, minimum: cfg.MinInterval, lookEvery: cfg.LookInterval,
	}
	f.desired.cutFor(backend, cfg.Piece)
	return f
}

// run runs until ctx ends. It leaves the kernel as it is, and no longer uses the backend.
func (f *family) run(ctx context.Context) {
	defer close(f.ended)
	var flows sync.WaitGroup
	for _, w := range f.flows {
		flows.Go(func() { w.Run(ctx) })
	}
	defer flows.Wait()
	defer f.lookout.stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.orders.wake:
		case <-timer.C:
		case what := <-f.lookout.result:
			f.looked(what)
		case q := <-f.questions:
			f.answer(ctx, q)
		}
		if ctx.Err() != nil { // a Sync that it ended was not noted as failed
			return
		}
		f.absorb(f.orders.take())
		if !f.open {
			continue
		}
		now := time.Now()
		if !f.syncAt(now).After(now) {
			f.syncNow(ctx)
		}
		f.lookIfDue(ctx)
		timer.Reset(time.Until(f.next()))
	}
}

// absorb updates the State as the Loop ordered.
func (f *family) absorb(o order) {
	if o.minimum != nil {
		f.minimum, f.lookEvery = *o.minimum, *o.lookEvery
	}
	if o.backend != nil {
		f.replace(o.backend)
	}
	if o.node != nil {
		f.rebase(o.node)
	}
	changed := false
	for key, svc := range o.services {
		changed = f.set(key, svc, o.queued) || changed
	}
	f.tellAnnouncer()
	if changed {
		f.noteTriggers(o.triggers)
	}
	if b, ok := f.backend.(rechecker); ok && o.full {
		b.Recheck()
	}
	f.open = f.open || o.open
	f.full = f.full || o.full
	f.dirty = f.dirty || o.full || o.repair
	f.pace.changed = f.pace.changed || o.full || o.repair
	f.lookout.wanted = f.lookout.wanted || o.look
	f.broken = f.broken || o.repair
	if o.repair {
		f.cause(Foreign)
	}
	if f.dirty && (changed || o.full || o.repair || o.node != nil || o.backend != nil) {
		f.tellQueued()
	}
	f.told(o.number)
}

// tellQueued reports that there is something to sync.
func (f *family) tellQueued() {
	f.cfg.Observer.Queued(f.fam, time.Now())
}

// told notes the last order that is in the State. If it changed nothing, the kernel
// holds it already.
func (f *family) told(number uint64) {
	f.mu.Lock()
	f.news.told = max(f.news.told, number)
	held := !f.dirty && f.news.err == nil && f.news.held < f.news.told
	if held {
		f.news.held, f.news.synced = f.news.told, f.news.told
	}
	f.mu.Unlock()
	if held {
		f.revision.Add(1)
		f.report()
	}
}

// set resolves one service again; it has no Service when it was removed. It reports whether that
// changes the State.
func (f *family) set(key source.Key, svc policy.Subject, queued time.Time) (changed bool) {
	var r *policy.Resolved
	if svc.Service != nil {
		r = policy.Resolve(svc.Service, svc.Conditions, f.desired.node, f.fam)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.announcing.Shrink(key, r)
	if !f.desired.put(key, r, queued, f.news.told+1, f.full || f.news.err != nil) {
		return false
	}
	f.revision.Add(1)
	f.dirty = true
	f.pace.changed = true
	return true
}

// rebase switches to a changed node. The same order has all services that it touches.
func (f *family) rebase(node *policy.Node) {
	host := node.Host(f.fam)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.desired.node = node
	if f.desired.state.Host.Equal(&host) {
		return
	}
	f.desired.state.Host = host
	f.full, f.dirty = true, true
	f.pace.changed = true
}

// replace switches to another backend.
func (f *family) replace(b proxier.Backend) {
	if b == f.backend {
		return
	}
	f.lookout.stop()
	f.backend, f.full, f.dirty = b, true, true
	f.desired.cutFor(b, f.cfg.Piece)
	f.pace, f.causes = pace{}, nil
	f.mu.Lock()
	f.revision.Add(1)
	f.news.held, f.news.synced, f.news.err, f.news.failures, f.news.since = 0, 0, nil, 0, time.Time{}
	f.mu.Unlock()
}

// A delayer is a backend that needs a Sync at a certain time, such as at the end of a
// deadline. Zero: none.
type delayer interface{ NextDue() time.Time }

// A rechecker is a backend that may rely on the kernel's notifications. After Recheck
// it compares everything nevertheless.
type rechecker interface{ Recheck() }

// syncAt returns when the next Sync should start; far away if there is nothing to sync.
func (f *family) syncAt(now time.Time) time.Time {
	switch {
	case f.news.err != nil:
		return f.pace.retryAt()
	case len(f.desired.growing) > 0:
		return f.pace.ended
	case f.dirty:
		return f.pace.started.Add(f.minimum)
	}
	if b, ok := f.backend.(delayer); ok {
		if at := b.NextDue(); !at.IsZero() {
			return times.Later(at, f.pace.ended.Add(minDue))
		}
	}
	return now.Add(time.Hour)
}

// next returns when there is something to do if no order comes before.
func (f *family) next() time.Time {
	return times.Earlier(f.syncAt(time.Now()), f.lookAt())
}

// syncNow makes the kernel hold the State, and reports the result.
func (f *family) syncNow(ctx context.Context) {
	r := f.sync(ctx)
	if ctx.Err() != nil && r.Err != nil {
		return // it was stopped, and the result is of no interest
	}
	f.log(&r)
	if errors.Is(r.Err, proxier.ErrRestart) {
		select {
		case f.fatal <- r.Err:
		default: // the Loop ends already
		}
	}
	if r.Err == nil {
		f.tellFlows(r.Full || f.broken)
		f.announce(r.Unserved)
	}
	f.done(&r)
	if f.dirty || r.Err != nil { // there is another piece, or it is tried again
		f.tellQueued()
	}
	f.cfg.Observer.Synced(r)
	f.report()
}

// grow puts into the State what the next Sync has of growing services.
func (f *family) grow(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.desired.grow(full) {
		f.revision.Add(1)
	}
}

// tellFlows tells the workers of a successful Sync; all: the kernel may have held something else.
func (f *family) tellFlows(all bool) {
	s := &flows.Sync{Changes: f.desired.changes.Services, Host: f.desired.state.Host, Node: f.desired.node, All: all}
	for _, w := range f.flows {
		w.Synced(s)
	}
}

// sync is one Sync of the backend.
func (f *family) sync(ctx context.Context) SyncResult {
	r := SyncResult{Family: f.fam, Full: f.full || f.news.err != nil, Start: time.Now(), Triggers: f.triggers, Repairs: f.causes}
	f.grow(r.Full)
	for _, w := range f.flows {
		w.Expect(f.desired.changes.Services)
	}
	r.Queued = f.desired.queued
	var delta *policy.Delta
	if !r.Full {
		delta = f.desired.changes.Delta()
	}
	ctx, stop := f.watch(ctx, syncWork, &f.news.working)
	defer stop()
	err := f.backend.Sync(ctx, f.desired.state, delta)
	r.Duration = time.Since(r.Start)
	if errors.As(err, &r.Unserved) || err == nil {
		return r
	}
	if context.Cause(ctx) == errStuck {
		err = fmt.Errorf("%w: %w", errStuck, err)
	}
	r.Err = fmt.Errorf("syncing %s (%d services): %w", f.fam, len(f.desired.state.Services), err)
	return r
}

// log logs a failure, and what is not served when that changes.
func (f *family) log(r *SyncResult) {
	switch {
	case r.Err != nil:
		f.cfg.Log.Error("sync failed", "family", f.fam, "err", r.Err, "took", r.Duration)
	case report.UnservedText(r.Unserved) == report.UnservedText(f.news.unserved):
	case r.Unserved != nil:
		f.cfg.Log.Error("not served", "family", f.fam, "virtual_servers", r.Unserved.N, "err", r.Unserved.Err)
	default:
		f.cfg.Log.Info("all is served again", "family", f.fam)
	}
}

// done records the result of a sync.
func (f *family) done(r *SyncResult) {
	end := r.Start.Add(r.Duration)
	f.pace.done(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision.Add(1)
	n := &f.news
	n.err, n.took = r.Err, r.Duration
	n.unsure = r.Err != nil && (n.unsure || f.full || f.broken)
	if r.Err != nil {
		f.cause(FailedSync)
		n.failures++
		if n.since.IsZero() {
			n.since = end
		}
		return
	}
	n.failures, n.since, n.good, n.unserved, n.synced = 0, time.Time{}, end, r.Unserved, n.told
	n.held = f.desired.heldOf(n.told)
	f.full, f.dirty, f.broken = false, len(f.desired.growing) > 0, false
	f.triggers, f.causes = nil, nil
	f.desired.changes, f.desired.queued = policy.NewChanges(), time.Time{}
	if r.Full {
		f.lookout.last = end
	}
}

// minDue is the least time between a Sync and one that a delayer asks for, so that
// something overdue that cannot be done does not keep a processor busy.
const minDue = 50 * time.Millisecond

// holdsAny reports whether it is known what the kernel holds. The caller holds f.mu.
func (f *family) holdsAny() bool { return f.news.synced > 0 && !f.news.unsure }

// latest returns the news of f.
func (f *family) latest() familyNews {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.news
}

// unfinished reports whether the kernel does not hold a service as it was last resolved.
func (f *family) unfinished(key source.Key) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.desired.unfinished(key)
}

// alive returns now, or since when a Sync of f should have made progress.
func (f *family) alive() time.Time {
	if p := f.latest().working; p != nil {
		return p.alive()
	}
	return time.Now()
}
