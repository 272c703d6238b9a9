package proxier

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy/source"
)

// Config is what a Loop works with.
type Config struct {
	Backends map[Family]Backend // one for each family to program
	Flows    Flows              // nil: UDP flows are left alone
	Node     *Node
	Reserved []netip.AddrPort // TCP ports this program itself listens on

	Sources        []string      // nothing is programmed before each of these has called Synced
	MinInterval    time.Duration // least time between two syncs of one family
	ResyncInterval time.Duration // how often the kernel is compared with what it should hold
	SyncTimeout    time.Duration // after which a Sync is given up

	Log *slog.Logger

	// Called from the goroutine of the Loop, which waits for them. May be nil.
	OnSync   func(SyncResult)    // after each sync
	OnHealth func([]HealthCheck) // with all services that have a health check node port, when any of it changed
	OnAccept func([]source.Unit) // with units that were accepted, without their services, before they are synced
}

// A SyncResult tells how one Sync of one family went.
type SyncResult struct {
	Family       Family
	Full         bool      // compared with the kernel, rather than a delta
	Queued       time.Time // when the oldest change in it arrived; zero for a mere resync
	Start        time.Time
	Duration     time.Duration
	Err          error
	Unserved     *Unserved // what could not be had of a sync that succeeded otherwise; nil: nothing
	Services     int       // in the State, after it
	Endpoints    int       // that get new connections, each port of a service counted
	FlowsDeleted int       // UDP flows
}

// A Loop keeps backends in step with sources. It implements source.Sink. One
// goroutine, Run, does all the work; what others tell it waits in an inbox.
type Loop struct {
	cfg   Config
	ready chan struct{}
	pulse pulse

	inbox inbox

	mu       sync.RWMutex // held for writing by Run while it changes what follows; never during a Sync
	tracker  *Tracker
	families []*family // in order of the IP version
	node     *Node
	health   health
	edits    map[source.Key]Transition // not yet logged
	synced   map[string]bool
	first    bool   // the first complete sync is done
	replaced func() // to be called when new backends hold everything; nil: none are new
}

// NewLoop returns a Loop that does nothing yet.
func NewLoop(cfg Config) *Loop {
	l := &Loop{
		cfg: cfg, ready: make(chan struct{}), inbox: newInbox(),
		tracker: NewTracker(cfg.Reserved), node: cfg.Node,
		health: newHealth(), edits: make(map[source.Key]Transition), synced: make(map[string]bool),
	}
	l.replace(&replacement{backends: cfg.Backends})
	return l
}

// Run works until ctx ends. The kernel then stays as it is.
func (l *Loop) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.pulse.rest()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.inbox.wake:
		case <-timer.C:
		}
		l.pulse.work(l.cfg.SyncTimeout)
		l.absorb(l.inbox.take())
		if !l.allSynced() {
			continue
		}
		l.syncDue(ctx)
		l.lookAgain(ctx)
		timer.Reset(time.Until(l.nextDue()))
	}
}

// absorb brings the states up to date with what came in.
func (l *Loop) absorb(in mail) {
	defer l.tellClaims()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, src := range in.synced {
		l.synced[src] = true
	}
	if in.minimum != nil {
		l.cfg.MinInterval, l.cfg.ResyncInterval = *in.minimum, *in.resync
	}
	for _, ch := range in.changes {
		for _, tr := range l.tracker.Apply(ch) {
			l.transition(tr, in.queued)
		}
	}
	if in.node != nil && !in.node.Equal(l.node) {
		l.rebase(in.node, in.queued)
	}
	if in.backends != nil {
		l.replace(in.backends)
	}
	for _, f := range l.families {
		f.full = f.full || in.full
		f.dirty = f.dirty || in.full
	}
}

// tellClaims says which units were accepted, and logs which were refused, once each.
func (l *Loop) tellClaims() {
	for _, r := range l.tracker.NewRefusals() {
		what := "refused: it has no services until what it claims is free"
		if r.Stale {
			what = "refused: its services stay as last accepted until what it claims is free"
		}
		l.cfg.Log.Warn(what, "unit", r.Unit.Name, "faults", len(r.Faults), "first", r.Faults[0].String())
	}
	if units := l.tracker.Accepted(); len(units) > 0 && l.cfg.OnAccept != nil {
		l.cfg.OnAccept(units)
	}
}

func (l *Loop) transition(tr Transition, queued time.Time) {
	key := tr.key()
	for _, f := range l.families {
		f.set(key, tr.New, l.node, queued)
	}
	l.health.set(key, tr.New, l.node)
	if e, again := l.edits[key]; again {
		tr.Old = e.Old
	}
	l.edits[key] = tr
}

// rebase resolves everything anew for a changed node.
func (l *Loop) rebase(node *Node, queued time.Time) {
	l.node = node
	for _, f := range l.families {
		f.rebase(node)
	}
	l.tracker.services(func(s *source.Service, _ source.UnitID) {
		for _, f := range l.families {
			f.set(s.Key, s, node, queued)
		}
		l.health.set(s.Key, s, node)
	})
}

// replace goes on with other backends, which may be of other families.
func (l *Loop) replace(r *replacement) {
	had := make(map[Family]*family)
	for _, f := range l.families {
		had[f.fam] = f
	}
	l.families = nil
	for _, fam := range []Family{IPv4, IPv6} {
		b := r.backends[fam]
		if b == nil {
			continue
		}
		f := had[fam]
		if f == nil {
			f = newFamily(fam, b, l.node)
			l.tracker.services(func(s *source.Service, _ source.UnitID) { f.set(s.Key, s, l.node, time.Now()) })
		}
		f.backend, f.full, f.dirty, f.err = b, true, true, nil
		l.families = append(l.families, f)
	}
	l.replaced = r.done
}

func (l *Loop) allSynced() bool {
	return !slices.ContainsFunc(l.cfg.Sources, func(s string) bool { return !l.synced[s] })
}

// syncDue syncs the families whose time has come, side by side.
func (l *Loop) syncDue(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.SyncTimeout)
	defer cancel()
	now := time.Now()
	results := make([]*SyncResult, len(l.families))
	var wg sync.WaitGroup
	for i, f := range l.families {
		if f.due(l.cfg.MinInterval, l.cfg.ResyncInterval).After(now) {
			continue
		}
		wg.Go(func() {
			r := f.sync(ctx, l.cfg.ResyncInterval)
			results[i] = &r
		})
	}
	wg.Wait()
	var took time.Duration // the slower of the two
	for i, r := range results {
		if r != nil {
			l.finish(ctx, l.families[i], r)
			took = max(took, r.Duration)
		}
	}
	l.settle(took)
}

// finish does what follows a sync of one family.
func (l *Loop) finish(ctx context.Context, f *family, r *SyncResult) {
	if r.Err == nil {
		r.FlowsDeleted = l.prune(ctx, f, r)
	} else if !errors.Is(r.Err, context.Canceled) {
		l.cfg.Log.Error("sync failed", "family", f.fam, "err", r.Err, "took", r.Duration)
	}
	l.logUnserved(f, r)
	l.mu.Lock()
	f.done(*r)
	l.mu.Unlock()
	if l.cfg.OnSync != nil {
		l.cfg.OnSync(*r)
	}
}

// logUnserved says what cannot be served when that changes.
func (l *Loop) logUnserved(f *family, r *SyncResult) {
	switch {
	case r.Err != nil || r.Unserved.text() == f.unserved.text():
	case r.Unserved != nil:
		l.cfg.Log.Error("not served", "family", f.fam, "virtual_servers", r.Unserved.N, "err", r.Unserved.Err)
	default:
		l.cfg.Log.Info("all is served again", "family", f.fam)
	}
}

// prune removes the UDP flows that a sync made stale. One that is missed now is
// found at the next resync.
func (l *Loop) prune(ctx context.Context, f *family, r *SyncResult) int {
	s := f.staleFlows(r.Full, l.node)
	if len(s.look) > 0 && !r.Queued.IsZero() { // something changed
		f.lookAgain(s, time.Now())
	}
	return l.remove(ctx, f.fam, s)
}

func (l *Loop) remove(ctx context.Context, fam Family, s *staleFlows) int {
	if l.cfg.Flows == nil || len(s.look) == 0 {
		return 0
	}
	n, err := l.cfg.Flows.Prune(ctx, fam, s.stale)
	if err != nil && ctx.Err() == nil {
		l.cfg.Log.Warn("stale UDP flows not removed", "family", fam, "err", err)
	}
	return n
}

// lookAgain removes the flows that came back after they were removed. Where it
// finds some, others may come back in the same way, so it goes on looking for a while.
func (l *Loop) lookAgain(ctx context.Context) {
	for _, f := range l.families {
		if f.again == nil || time.Now().Before(f.lookAt) {
			continue
		}
		f.looks--
		if l.remove(ctx, f.fam, f.again) > 0 && f.looks > 0 {
			f.lookAt = time.Now().Add(secondLook)
		} else {
			f.again = nil
		}
	}
}

// settle does what waits until all families hold what they should.
func (l *Loop) settle(took time.Duration) {
	if slices.ContainsFunc(l.families, func(f *family) bool { return f.dirty || f.err != nil }) {
		return
	}
	l.logEdits(took)
	l.health.tell(l.cfg.OnHealth)
	if l.replaced != nil {
		l.replaced()
		l.replaced = nil
	}
	if !l.first {
		l.mu.Lock()
		l.first = true
		l.mu.Unlock()
		close(l.ready)
	}
}

func (l *Loop) nextDue() time.Time {
	next := time.Now().Add(l.cfg.ResyncInterval)
	for _, f := range l.families {
		if due := f.due(l.cfg.MinInterval, l.cfg.ResyncInterval); due.Before(next) {
			next = due
		}
		if f.again != nil && f.lookAt.Before(next) {
			next = f.lookAt
		}
	}
	return next
}

// Ready is closed after the first complete sync of all families.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// Alive returns when the Loop last showed that it is not stuck: now, unless it
// is busy for longer than a sync may take.
func (l *Loop) Alive() time.Time { return l.pulse.alive() }
