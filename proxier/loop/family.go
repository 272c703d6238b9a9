package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	fam policy.Family
	cfg *Config

	wanted atomic.Pointer[wanting] // what the Loop last ordered it to use

	orders   orders
	inbox    *inbox         // of the Loop, for news of this family
	revision *atomic.Uint64 // of what Counts counts

	backend proxier.Backend
	flows   []*flows.Worker
	desired desired // others read its State and changes, which are guarded by mu

	due     due
	pace    pace
	lookout lookout
	ledger  *announce.Ledger

	mu   sync.RWMutex // held for writing by the goroutine while it changes desired or news
	news familyNews
}

// A wanting is a backend that a family is to use.
type wanting struct {
	backend proxier.Backend
	from    uint64      // the order from which on it does, or a later one
	holds   atomic.Bool // it holds everything
}

func newFamily(fam policy.Family, backend proxier.Backend, node *policy.Node, cfg *Config, in *inbox, revision *atomic.Uint64) *family {
	f := &family{
		fam: fam, cfg: cfg, orders: newOrders(), inbox: in, revision: revision, backend: backend, desired: newDesired(fam, node),
		due: due{full: true, dirty: true}, pace: pace{minimum: cfg.MinInterval}, lookout: lookout{every: cfg.LookInterval, result: make(chan RepairCause, 1)},
		ledger: announce.New(fam, cfg.Announcer),
		flows:  flows.NewWorkers(fam, flows.Config{Tracking: cfg.Flows.Tracking, RunDir: cfg.Flows.RunDir, Log: cfg.Log, Looked: cfg.Observer.Looked}),
	}
	f.wanted.Store(&wanting{backend: backend, from: 1})
	f.desired.cutFor(backend, cfg.Piece)
	return f
}

// run runs until ctx ends. It leaves the kernel as it is, and no longer uses the backend.
func (f *family) run(ctx context.Context) {
	defer close(f.orders.ended)
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
			f.handleLook(what)
		case q := <-f.orders.asked:
			f.answer(ctx, q)
		}
		if ctx.Err() != nil { // a Sync that it ended was not noted as failed
			return
		}
		f.handleOrder(f.orders.take())
		if !f.pace.open {
			continue
		}
		now := time.Now()
		if !f.syncAt(now).After(now) {
			f.syncNow(ctx)
		}
		f.lookIfDue(ctx)
		timer.Reset(time.Until(times.Earlier(f.syncAt(time.Now()), f.lookout.at(&f.news))))
	}
}

// handleOrder updates the State as the Loop ordered.
func (f *family) handleOrder(o order) {
	if o.minimum != nil {
		f.pace.minimum, f.lookout.every = *o.minimum, *o.lookEvery
	}
	if o.backend != nil {
		f.switchBackend(o.backend)
	}
	if o.node != nil {
		f.setNode(o.node)
	}
	changed := false
	for key, svc := range o.services {
		changed = f.resolve(key, svc, o.queued) || changed
	}
	f.ledger.Flush()
	if changed {
		f.due.triggers = addTriggers(f.due.triggers, o.triggers)
	}
	if b, ok := f.backend.(rechecker); ok && o.full {
		b.Recheck()
	}
	f.pace.open = f.pace.open || o.open
	f.due.full = f.due.full || o.full
	f.due.dirty = f.due.dirty || o.full || o.repair
	f.pace.changed = f.pace.changed || o.full || o.repair
	f.lookout.wanted = f.lookout.wanted || o.look
	f.due.kernelDiffered = f.due.kernelDiffered || o.repair
	if o.repair {
		f.due.cause(Foreign)
	}
	if f.due.dirty && (changed || o.full || o.repair || o.node != nil || o.backend != nil) {
		f.cfg.Observer.Queued(f.fam, time.Now())
	}
	f.recordOrder(o.number)
}

// recordOrder notes the last order that is in the State. If it changed nothing, the kernel
// holds it already.
func (f *family) recordOrder(number uint64) {
	f.mu.Lock()
	f.news.lastInState = max(f.news.lastInState, number)
	held := !f.due.dirty && f.news.err == nil && f.news.lastInKernel < f.news.lastInState
	if held {
		f.news.lastInKernel, f.news.lastSynced = f.news.lastInState, f.news.lastInState
	}
	f.mu.Unlock()
	if held {
		f.revision.Add(1)
		f.inbox.ring()
	}
}

// resolve resolves one service again; it has no Service when it was removed. It reports whether that
// changes the State.
func (f *family) resolve(key source.Key, svc policy.Subject, queued time.Time) (changed bool) {
	var r *policy.Resolved
	if svc.Service != nil {
		r = policy.Resolve(svc.Service, svc.Conditions, f.desired.node, f.fam)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ledger.Shrink(key, r)
	if !f.desired.stage(key, r, queued, f.news.lastInState+1, f.due.full || f.news.err != nil) {
		return false
	}
	f.revision.Add(1)
	f.due.dirty = true
	f.pace.changed = true
	return true
}

// setNode switches to a changed node. The same order has all services that it touches.
func (f *family) setNode(node *policy.Node) {
	host := node.Host(f.fam)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.desired.node = node
	if f.desired.next.Host.Equal(&host) {
		return
	}
	f.desired.next.Host = host
	f.due.full, f.due.dirty = true, true
	f.pace.changed = true
}

// switchBackend switches to another backend.
func (f *family) switchBackend(b proxier.Backend) {
	if b == f.backend {
		return
	}
	f.lookout.stop()
	f.backend, f.due.full, f.due.dirty = b, true, true
	f.desired.cutFor(b, f.cfg.Piece)
	f.pace = pace{open: f.pace.open, minimum: f.pace.minimum}
	f.due.causes = nil
	f.mu.Lock()
	f.revision.Add(1)
	f.news.lastInKernel, f.news.lastSynced, f.news.err, f.news.failures, f.news.since = 0, 0, nil, 0, time.Time{}
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
	case f.due.dirty:
		return f.pace.started.Add(f.pace.minimum)
	}
	if b, ok := f.backend.(delayer); ok {
		if at := b.NextDue(); !at.IsZero() {
			return times.Later(at, f.pace.ended.Add(minDue))
		}
	}
	return now.Add(time.Hour)
}

// syncNow makes the kernel hold the State, and reports the result.
func (f *family) syncNow(ctx context.Context) {
	r, changes := f.sync(ctx)
	if ctx.Err() != nil && r.Err != nil {
		return // it was stopped, and the result is of no interest
	}
	f.log(&r)
	if errors.Is(r.Err, proxier.ErrRestart) {
		f.inbox.put(func(m *mail) { m.fatal = cmp.Or(m.fatal, r.Err) })
	}
	if r.Err == nil {
		s := &flows.Sync{Changes: changes, Host: f.desired.next.Host, Node: f.desired.node}
		s.All = r.Full || f.due.kernelDiffered // the kernel may have held something else
		for _, w := range f.flows {
			w.Synced(s)
		}
		f.ledger.Synced(f.desired.next.Services, f.desired.changes.Services, r.Unserved)
		f.ledger.Flush()
	}
	f.done(&r)
	if f.due.dirty || r.Err != nil { // there is another piece, or it is tried again
		f.cfg.Observer.Queued(f.fam, time.Now())
	}
	f.cfg.Observer.Synced(r)
	f.inbox.ring()
}

// sync is one Sync of the backend. It also returns what changed of services.
func (f *family) sync(ctx context.Context) (r SyncResult, changes []policy.ServiceChange) {
	r = SyncResult{Family: f.fam, Full: f.due.full || f.news.err != nil, Start: time.Now(), Triggers: f.due.triggers, Repairs: f.due.causes}
	f.mu.Lock()
	if f.desired.grow(r.Full) {
		f.revision.Add(1)
	}
	f.mu.Unlock()
	r.Queued = f.desired.queued
	var delta *policy.Delta // of a full sync nil
	if r.Full {
		changes = f.desired.changes.Sorted()
	} else {
		delta = f.desired.changes.Delta()
		changes = delta.Services
	}
	for _, w := range f.flows {
		w.Expect(changes)
	}
	ctx, stop := f.withProgress(ctx, syncWork, &f.news.working)
	defer stop()
	err := f.backend.Sync(ctx, f.desired.next, delta)
	r.Duration = time.Since(r.Start)
	if errors.As(err, &r.Unserved) || err == nil {
		return r, changes
	}
	if context.Cause(ctx) == errStuck {
		err = fmt.Errorf("%w: %w", errStuck, err)
	}
	r.Err = fmt.Errorf("syncing %s (%d services): %w", f.fam, len(f.desired.next.Services), err)
	return r, changes
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
		f.cfg.Log.Info("all services are programmed again", "family", f.fam)
	}
}

// done records the result of a sync.
func (f *family) done(r *SyncResult) {
	end := r.Start.Add(r.Duration)
	f.pace.done(r.Start, end, r.Err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision.Add(1)
	n := &f.news
	n.err, n.took = r.Err, r.Duration
	n.kernelUnknown = r.Err != nil && (n.kernelUnknown || f.due.full || f.due.kernelDiffered)
	if r.Err != nil {
		f.due.cause(FailedSync)
		n.failures++
		if n.since.IsZero() {
			n.since = end
		}
		return
	}
	n.failures, n.since, n.good, n.unserved, n.lastSynced = 0, time.Time{}, end, r.Unserved, n.lastInState
	n.lastInKernel = f.desired.heldOf(n.lastInState)
	f.due = due{dirty: len(f.desired.growing) > 0}
	f.desired.changes, f.desired.queued = policy.NewChanges(), time.Time{}
	if r.Full {
		f.lookout.last = end
	}
}

// minDue is the least time between a Sync and one that a delayer asks for, so that
// something overdue that cannot be done does not keep a processor busy.
const minDue = 50 * time.Millisecond

// latest returns the news of f as it is now.
func (f *family) latest() *familyNews {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := f.news
	return &n
}

// unfinished reports whether the kernel does not hold a service as it was last resolved.
func (f *family) unfinished(key source.Key) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, changed := f.desired.changes.Services[key]
	return changed || f.desired.growing[key] != nil
}

// lookIfDue starts a look if one is due.
func (f *family) lookIfDue(ctx context.Context) {
	if f.lookout.at(&f.news).After(time.Now()) {
		return
	}
	b := f.backend
	f.lookout.start(ctx, func(ctx context.Context) RepairCause { return f.runLook(ctx, b) })
}

// runLook looks at the kernel, and returns why to repair it, if there is a cause.
func (f *family) runLook(ctx context.Context, b proxier.Backend) RepairCause {
	limited, stop := f.withProgress(ctx, lookWork, &f.news.looking)
	defer stop()
	repair, err := b.Look(limited)
	switch {
	case err != nil && ctx.Err() == nil:
		f.cfg.Log.Warn("cannot compare the kernel with the desired state; doing a full sync", "family", f.fam, "err", err)
		return Unreadable
	case repair:
		f.cfg.Log.Warn("the kernel does not hold what was written; repairing it", "family", f.fam)
		return Difference
	}
	return ""
}

// handleLook records the result of a look.
func (f *family) handleLook(cause RepairCause) {
	if f.lookout.ended(); cause == "" {
		return
	}
	f.due.kernelDiffered = f.due.kernelDiffered || cause == Difference
	f.due.full = f.due.full || cause == Unreadable
	f.due.cause(cause)
	f.due.dirty = true
	f.cfg.Observer.Queued(f.fam, time.Now())
}

// answer answers with the plan of the State as it is. An order ends it.
func (f *family) answer(ctx context.Context, q planQuestion) {
	st := f.desired.wantedState()
	p := &report.FamilyPlan{
		Family: f.fam, Services: f.desired.unsynced(st),
		Before: f.desired.former(), After: maps.Clone(st.Services), Host: st.Host, Node: f.desired.node,
		Fresh: f.news.good.IsZero(),
	}
	defer func() { q.answer <- p }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.ctx, cancel)()
	ctx, stop := f.withProgress(ctx, planWork, &f.news.working)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Objects, p.Err = f.backend.Plan(ctx, st)
	}()
	select {
	case <-done:
	case <-f.orders.wake: // what it is about is taken after this
		cancel()
		if <-done; p.Err != nil {
			p.Err = errInterrupted
		}
	}
}
