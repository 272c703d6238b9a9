package loop

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Loop keeps backends in step with sources. By its inbox it implements source.Sink. Its own
// goroutine, Run, only decides which claims are granted and which families a change
// concerns. Each family resolves and syncs in a goroutine of its own.
type Loop struct {
	inbox
	cfg      Config
	started  time.Time
	ready    chan struct{}
	families families
	revision atomic.Uint64             // grows with whatever Counts counts
	named    atomic.Int64              // how many services Counts names
	busy     atomic.Pointer[time.Time] // since when Run has been working; nil: it waits

	mu      sync.RWMutex // held for writing by Run while it changes what follows
	catalog catalog
	backlog backlog

	nodeHealth nodeHealths
	number     uint64 // of the last order
	opened     uint64 // the order that allowed families to begin; 0: not yet
	first      bool   // the first complete sync is done

	counted struct { // last, by Counts
		sync.Mutex
		revision uint64 // as it was before
		counts   report.Counts
	}
}

// New returns a Loop that does nothing yet.
func New(cfg Config) *Loop {
	if cfg.Conditions == nil {
		cfg.Conditions = noConditions{}
	}
	if cfg.Observer == nil {
		cfg.Observer = Unobserved{}
	}
	if cfg.Announcer != nil {
		cfg.Surroundings.Announcer = cfg.Announcer
	}
	return &Loop{
		cfg: cfg, started: time.Now(), ready: make(chan struct{}), inbox: inbox{newMailbox[mail]()},
		catalog: newCatalog(&cfg), nodeHealth: newNodeHealths(),
	}
}

// Run runs the loop until ctx ends, or a Backend gives ErrRestart, and leaves the kernel as it is.
func (l *Loop) Run(ctx context.Context) error {
	l.switchBackends(ctx, l.cfg.Backends)
	defer l.switchBackends(ctx, nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.inbox.wake:
		}
		in, now := l.inbox.take(), time.Now()
		if in.fatal != nil {
			return in.fatal
		}
		l.busy.Store(&now)
		if !in.queued.IsZero() { // else it is a family that woke the Loop
			l.handleMail(ctx, in)
		}
		l.completeBatches()
		l.busy.Store(nil)
	}
}

// handleMail takes in everything that arrived, and sends orders to the families.
func (l *Loop) handleMail(ctx context.Context, in mail) {
	l.mu.Lock()
	for _, src := range in.synced {
		l.catalog.read(src)
	}
	if in.reserved != nil {
		l.catalog.tracker.Reserve(*in.reserved)
		in.changes = append(in.changes, source.Changes{}) // for what waits
	}
	l.mu.Unlock()
	if in.minimum != nil {
		l.cfg.MinInterval, l.cfg.LookInterval = *in.minimum, *in.lookEvery
	}
	o := order{queued: in.queued, minimum: in.minimum, lookEvery: in.lookEvery, full: in.full}
	o.services, o.triggers = l.grantClaims(in.changes)
	l.reconsider(in.reconsider, &o)
	if in.node != nil && !in.node.Equal(l.catalog.node) {
		l.setNode(in.node, &o)
	}
	if o.open = len(l.catalog.unread) == 0; o.open && l.opened == 0 {
		l.opened = l.number + 1
	}
	if in.backends != nil {
		l.switchBackends(ctx, in.backends)
	}
	l.sendOrder(o, &in)
	l.reportClaims()
}

// sendOrder sends one order to all families.
func (l *Loop) sendOrder(o order, in *mail) {
	l.number++
	o.number = l.number
	for _, f := range l.families.list {
		o.repair, o.look = in.repair[f.fam], in.look[f.fam]
		f.orders.put(o)
	}
	for _, told := range in.replies {
		told <- l.number
	}
}

// grantClaims applies changes of sources, and returns the services that changed, and when they were.
func (l *Loop) grantClaims(steps []source.Changes) (services map[source.Key]policy.Subject, triggers []time.Time) {
	b := newBatch(l.number + 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	services = make(map[source.Key]policy.Subject)
	for _, ch := range steps {
		changed := l.catalog.tracker.Apply(ch)
		triggers = append(triggers, triggersOf(ch, changed, l.started)...)
		for _, tr := range changed {
			key := tr.Key()
			services[key] = l.catalog.know(key, tr.New, l.cfg.Conditions.Use(key, tr.New))
			l.nodeHealth.set(key, services[key], l.catalog.node, b.number)
			b.add(key, tr)
		}
	}
	l.revision.Add(1)
	l.backlog.add(b)
	return services, triggers
}

// setNode has the services resolved again that a changed node touches.
func (l *Loop) setNode(node *policy.Node, o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	touched := touchedBy(l.catalog.node, node)
	l.catalog.node, o.node = node, node
	l.catalog.tracker.Services(func(s *source.Service, _ source.UnitID) {
		if touched(s) {
			o.services[s.Key] = policy.Subject{Service: s, Conditions: l.catalog.conditions[s.Key]}
			l.nodeHealth.set(s.Key, o.services[s.Key], node, l.number+1)
		}
	})
}

// reconsider has services resolved again of whose endpoints more is known.
func (l *Loop) reconsider(keys map[source.Key]bool, o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range keys {
		svc := l.catalog.tracker.InUse(key)
		if svc == nil {
			continue // it went meanwhile
		}
		o.services[key] = l.catalog.know(key, svc, l.cfg.Conditions.Conditions(key))
		l.nodeHealth.set(key, o.services[key], l.catalog.node, l.number+1)
	}
	if len(keys) > 0 {
		l.revision.Add(1)
	}
}

// reportClaims reports accepted units, and logs each refused one once.
func (l *Loop) reportClaims() {
	for _, r := range l.catalog.tracker.NewRefusals() {
		what := "refused: it has no services until what it claims is free"
		switch {
		case r.NoRoom:
			what = "refused: with it all services would be more than the limits allow"
		case r.Partial:
			what = "refused in part: what another has is left out until it is free"
		case r.Stale:
			what = "refused: its services stay as last accepted until what it claims is free"
		}
		l.cfg.Log.Warn(what, "unit", r.Unit.Name, "faults", len(r.Faults), "first", r.Faults[0].String())
	}
	if units := l.catalog.tracker.Accepted(); len(units) > 0 {
		l.cfg.Observer.Accepted(units)
	}
}

// switchBackends switches to other backends, possibly of other families. When it returns,
// dropped families no longer use theirs.
func (l *Loop) switchBackends(ctx context.Context, backends map[policy.Family]proxier.Backend) {
	var keep []*family
	backends = l.families.await(backends, l.ring)
	for _, f := range l.families.list {
		b := backends[f.fam]
		if b == nil {
			f.orders.stop()
			if ctx.Err() == nil { // else it is the end of the Loop, and traffic goes on
				f.ledger.Withdraw()
			}
			l.cfg.Observer.Dropped(f.fam)
			continue
		}
		f.orders.put(order{backend: b})
		if b != f.wanted.Load().backend {
			f.wanted.Store(&wanting{backend: b, from: l.number + 1})
		}
		keep = append(keep, f)
		delete(backends, f.fam)
	}
	for fam, b := range backends {
		f := newFamily(fam, b, l.catalog.node, &l.cfg, &l.inbox, &l.revision)
		f.orders.put(order{services: l.catalog.services(), queued: time.Now(), open: len(l.catalog.unread) == 0})
		l.families.start(ctx, f)
		keep = append(keep, f)
	}
	slices.SortFunc(keep, func(a, b *family) int { return int(a.fam) - int(b.fam) })
	l.families.change(func() {
		l.families.list = keep
		l.revision.Add(1)
	})
}

// completeBatches does what had to wait until the families hold what they were ordered.
func (l *Loop) completeBatches() {
	for _, f := range l.families.list { // each for itself: one that fails does not keep another on its former backend
		if w := f.wanted.Load(); !w.holds.Load() && f.latest().lastInKernel >= w.from {
			w.holds.Store(true)
			l.cfg.Observer.Holds(f.fam)
		}
	}
	held, took := l.families.held(!l.first)
	holds := func(key source.Key, number uint64) bool { return l.families.holdsOf(held, key, number) }
	begun := l.opened != 0 && held >= l.opened
	if begun || l.first {
		l.nodeHealth.report(holds, l.cfg.Observer.NodeHealth)
	}
	if !begun {
		return
	}
	if !l.first {
		l.becomeReady(took)
	}
	if done, left := l.backlog.split(held, holds); len(done) > 0 {
		logBatches(l.cfg.Log, done, took)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.backlog.batches = left
		l.revision.Add(1)
	}
}

// becomeReady reports that the first complete sync is done.
func (l *Loop) becomeReady(took time.Duration) {
	l.first = true
	l.mu.Lock()
	l.revision.Add(1)
	l.backlog.batches = slices.DeleteFunc(l.backlog.batches, func(b batch) bool { return b.number <= l.opened })
	l.mu.Unlock()
	l.cfg.Log.Info("first sync complete", "services", len(l.catalog.services()), slog.Duration("sync", took))
	for _, f := range l.families.list {
		if n := f.latest(); n.lastInKernel == 0 {
			l.cfg.Log.Warn("IPv4 or IPv6 sync keeps failing; continuing without it, will retry", "family", f.fam, "err", n.failure())
		}
	}
	close(l.ready)
}

// Ready is closed after the first complete sync: all families hold everything, except
// those that fail, which were warned of.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// RunAlive is Alive whatever a Sync does: where one waits for the kernel, a restart would not help: it would wait too.
func (l *Loop) RunAlive() time.Time {
	if since := l.busy.Load(); since != nil {
		return times.Earlier(time.Now(), since.Add(l.cfg.SyncTimeout))
	}
	return time.Now()
}

// Alive returns when the Loop last showed that it is not stuck: now, unless a Sync
// makes no progress for longer than it may, or Run itself is busy for as long.
func (l *Loop) Alive() time.Time {
	at := l.RunAlive()
	for _, f := range l.families.all() {
		at = times.Earlier(at, f.latest().working.alive())
	}
	return at
}

// Holds reports whether this backend holds everything of a family, so that what other
// backends hold of the family can be removed.
func (l *Loop) Holds(fam policy.Family, b proxier.Backend) bool {
	return slices.ContainsFunc(l.families.all(), func(f *family) bool {
		w := f.wanted.Load()
		return f.fam == fam && w.backend == b && w.holds.Load()
	})
}

// DrainHost has nothing announced from now on, or again what is: this host is drained, or not any more. When
// it returns the Announcer has been told, whatever families are doing: a sync may take its time.
func (l *Loop) DrainHost(drained bool) {
	l.families.change(func() { l.families.drained.Store(drained) })
}
