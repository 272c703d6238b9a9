package loop

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Config configures a Loop.
type Config struct {
	Backends map[policy.Family]proxier.Backend // one for each family to program; nil: it follows by SetBackends
	Flows    flows.Tracking                    // nil: UDP flows are left alone
	RunDir   string                            // where to record to which services flows may be tracked; empty: nowhere
	Node     *policy.Node
	Reserved []netip.AddrPort // TCP ports this program itself listens on
	Limits   *source.Products // of all services together; nil: none

	Sources      []string      // in order of precedence; nothing is programmed before each of these has called Synced
	MinInterval  time.Duration // least time between two syncs of one family
	LookInterval time.Duration // how often a look compares the kernel with what it should hold
	SyncTimeout  time.Duration // after which a Sync that makes no progress is given up, see Progressed
	Piece        int           // about how many elements of a large service one Sync changes; 0: as the backend says

	Log *slog.Logger

	// Conditions knows of endpoints what their files do not say; nil: nothing.
	Conditions Conditioner

	// Announcer tells the network of addresses; nil: nothing does.
	Announcer announce.Announcer

	// Surroundings are for those who report. Its Announcer is that of the Loop.
	Surroundings report.Surroundings

	// Observer hears what the Loop does; nil: nobody does.
	Observer Observer
}

// An Observer hears what a Loop does. Its methods must not block. One that does not care for all embeds Unobserved.
type Observer interface {
	Queued(policy.Family, time.Time) // there is something to sync; from a goroutine for each family
	Synced(SyncResult)               // after each sync, from a goroutine for each family
	Holds(policy.Family)             // the backend of a family holds everything, once for each backend
	Dropped(policy.Family)           // a family is no longer programmed, after its last Synced
	NodeHealth([]NodeHealth)         // all services that have a health check node port, when any of them changed
	Accepted([]source.Unit)          // files that were accepted, without their services, before they are synced

	// Looked is called after each look for stale UDP flows, from goroutines of their own.
	Looked(fam policy.Family, removed int, took time.Duration)
}

// Unobserved is an Observer that does nothing.
type Unobserved struct{}

// Queued implements Observer.
func (Unobserved) Queued(policy.Family, time.Time) {}

// Synced implements Observer.
func (Unobserved) Synced(SyncResult) {}

// Holds implements Observer.
func (Unobserved) Holds(policy.Family) {}

// Dropped implements Observer.
func (Unobserved) Dropped(policy.Family) {}

// NodeHealth implements Observer.
func (Unobserved) NodeHealth([]NodeHealth) {}

// Accepted implements Observer.
func (Unobserved) Accepted([]source.Unit) {}

// Looked implements Observer.
func (Unobserved) Looked(policy.Family, int, time.Duration) {}

// A SyncResult is the outcome of one Sync of one family.
type SyncResult struct {
	Family   policy.Family
	Full     bool      // compared with the kernel, rather than a delta
	Queued   time.Time // when the oldest change in it arrived; zero for a resync without changes
	Start    time.Time
	Duration time.Duration
	Err      error
	Unserved *proxier.PartialError // what an otherwise successful sync could not make; nil: nothing

	Triggers []time.Time   // when the changes in it were made where they are from, as far as that is known
	Repairs  []RepairCause // why it repaired what the kernel held
}

// A Loop keeps backends in step with sources. It implements source.Sink. Its own
// goroutine, Run, only decides which claims are granted and which families a change
// concerns. Each family resolves and syncs in a goroutine of its own.
type Loop struct {
	cfg      Config
	started  time.Time
	ready    chan struct{}
	inbox    inbox
	counted  countsCache
	revision atomic.Uint64             // grows with whatever Counts counts
	busy     atomic.Pointer[time.Time] // since when Run has been working; nil: it waits

	mu         sync.RWMutex // held for writing by Run while it changes what follows
	tracker    *claims.Tracker
	conditions map[source.Key]policy.Conditions // of services in use of whose endpoints something is known
	families   []*runningFamily                 // in order of the IP version
	node       *policy.Node
	synced     map[string]bool
	batches    []batch // not yet held by all families

	seen report.ChangeCounts // since the start

	nodeHealth nodeHealths
	number     uint64 // of the last order
	opened     uint64 // the order that allowed families to begin; 0: not yet
	first      bool   // the first complete sync is done

	awaited map[policy.Family]time.Time // since when families have been without a backend that is to follow

	drained bool // this host is; guarded by mu
}

// A runningFamily is a family whose goroutine runs.
type runningFamily struct {
	*family
	stop func() // ends it, and waits

	wanted proxier.Backend // the one it was last ordered to use
	from   uint64          // that order, or a later one
	holds  bool            // that backend holds everything
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
	l := &Loop{
		cfg: cfg, started: time.Now(), ready: make(chan struct{}), inbox: newInbox(),
		tracker: claims.NewTracker(cfg.Reserved, cfg.Sources...), node: cfg.Node,
		conditions: make(map[source.Key]policy.Conditions),
		nodeHealth: newNodeHealths(), synced: make(map[string]bool),
	}
	if cfg.Limits != nil {
		l.tracker.Limit(*cfg.Limits)
	}
	return l
}

// Run runs the loop until ctx ends, or a Backend gives ErrRestart, and leaves the kernel as it is.
func (l *Loop) Run(ctx context.Context) error {
	l.replace(ctx, l.cfg.Backends)
	defer l.replace(ctx, nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.inbox.wake:
		}
		now := time.Now()
		l.busy.Store(&now)
		in := l.inbox.take()
		if in.fatal != nil {
			return in.fatal
		}
		if !in.empty() {
			l.absorb(ctx, in)
		}
		l.settle()
		l.busy.Store(nil)
	}
}

// absorb takes in everything that arrived, and sends orders to the families.
func (l *Loop) absorb(ctx context.Context, in mail) {
	l.mu.Lock()
	for _, src := range in.synced {
		l.synced[src] = true
	}
	if in.reserved != nil {
		l.tracker.Reserve(*in.reserved)
		in.changes = append(in.changes, source.Changes{}) // for what waits
	}
	l.mu.Unlock()
	if in.minimum != nil {
		l.cfg.MinInterval, l.cfg.LookInterval = *in.minimum, *in.lookEvery
	}
	o := order{queued: in.queued, minimum: in.minimum, lookEvery: in.lookEvery, full: in.full}
	o.services, o.triggers = l.apply(in.changes)
	l.reconsider(in.reconsider, &o)
	if in.node != nil && !in.node.Equal(l.node) {
		l.rebase(in.node, &o)
	}
	if o.open = l.allSynced(); o.open && l.opened == 0 {
		l.opened = l.number + 1
	}
	if in.backends != nil {
		l.replace(ctx, in.backends)
	}
	l.tell(o, &in)
	l.tellClaims()
}

// tell sends one order to all families.
func (l *Loop) tell(o order, in *mail) {
	l.number++
	o.number = l.number
	for _, f := range l.families {
		o.repair, o.look = in.repair[f.fam], in.look[f.fam]
		f.orders.put(o)
	}
	for _, told := range in.told {
		told <- l.number
	}
}

// apply applies changes of sources, and returns the services that changed, and when they were.
func (l *Loop) apply(steps []source.Changes) (services map[source.Key]policy.Subject, triggers []time.Time) {
	b := batch{number: l.number + 1, edits: make(map[source.Key]claims.Transition)}
	l.mu.Lock()
	defer l.mu.Unlock()
	services = make(map[source.Key]policy.Subject)
	for _, ch := range steps {
		changed := l.tracker.Apply(ch)
		triggers = append(triggers, triggersOf(ch, changed, l.started)...)
		for _, tr := range changed {
			key := tr.Key()
			services[key] = l.use(key, tr.New)
			l.nodeHealth.set(key, services[key], l.node, b.number)
			b.add(key, tr)
		}
	}
	l.seen.Add(b.counts)
	l.revision.Add(1)
	l.keep(b)
	return services, triggers
}

// rebase has the services resolved again that a changed node touches.
func (l *Loop) rebase(node *policy.Node, o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change := nodeChangeOf(l.node, node)
	l.node, o.node = node, node
	l.tracker.Services(func(s *source.Service, _ source.UnitID) {
		if change.touches(s) {
			o.services[s.Key] = l.subject(s)
			l.nodeHealth.set(s.Key, o.services[s.Key], node, l.number+1)
		}
	})
}

func (l *Loop) services() map[source.Key]policy.Subject {
	all := make(map[source.Key]policy.Subject)
	l.tracker.Services(func(s *source.Service, _ source.UnitID) { all[s.Key] = l.subject(s) })
	return all
}

// tellClaims reports accepted units, and logs each refused one once.
func (l *Loop) tellClaims() {
	for _, r := range l.tracker.NewRefusals() {
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
	if units := l.tracker.Accepted(); len(units) > 0 {
		l.cfg.Observer.Accepted(units)
	}
}

// replace switches to other backends, possibly of other families. When it returns,
// dropped families no longer use theirs.
func (l *Loop) replace(ctx context.Context, backends map[policy.Family]proxier.Backend) {
	var keep []*runningFamily
	backends = l.await(backends)
	for _, f := range l.families {
		if backends[f.fam] == nil {
			f.stop()
			if ctx.Err() == nil { // else it is the end of the Loop, and traffic goes on
				f.announcing.withdrawAll()
			}
			l.cfg.Observer.Dropped(f.fam)
			continue
		}
		f.orders.put(order{backend: backends[f.fam]})
		keep = append(keep, f.using(backends[f.fam], l.number+1))
	}
	for fam, b := range backends {
		if !slices.ContainsFunc(keep, func(f *runningFamily) bool { return f.fam == fam }) {
			keep = append(keep, l.begin(ctx, fam, b))
		}
	}
	slices.SortFunc(keep, func(a, b *runningFamily) int { return int(a.fam) - int(b.fam) })
	l.mu.Lock()
	l.families = keep
	for _, f := range keep {
		f.announcing.withhold(l.drained) // since one began, that may have changed
	}
	l.revision.Add(1)
	l.mu.Unlock()
	for _, f := range keep {
		f.announcing.tell()
	}
}

// await notes the families whose backend is to follow, and returns the others. The first sync is
// complete without them once they have had as long as a Sync that makes no progress.
func (l *Loop) await(backends map[policy.Family]proxier.Backend) map[policy.Family]proxier.Backend {
	there, awaited := make(map[policy.Family]proxier.Backend, len(backends)), make(map[policy.Family]time.Time)
	for fam, b := range backends {
		if b != nil {
			there[fam] = b
			continue
		}
		since, again := l.awaited[fam]
		if !again {
			since = time.Now()
			time.AfterFunc(leftOutStall(), l.inbox.ring)
		}
		awaited[fam] = since
	}
	l.awaited = awaited
	return there
}

// using returns the family with another backend, in use from the given order on.
func (f *runningFamily) using(b proxier.Backend, from uint64) *runningFamily {
	if b == f.wanted {
		return f
	}
	return &runningFamily{family: f.family, stop: f.stop, wanted: b, from: from}
}

// begin starts a family with all services.
func (l *Loop) begin(ctx context.Context, fam policy.Family, b proxier.Backend) *runningFamily {
	f := newFamily(fam, b, l.node, &l.cfg, &l.inbox, &l.revision)
	l.mu.RLock()
	f.announcing.withhold(l.drained)
	l.mu.RUnlock()
	f.orders.put(order{services: l.services(), queued: time.Now(), open: l.allSynced()})
	ctx, cancel := context.WithCancel(ctx)
	go f.run(ctx)
	return &runningFamily{family: f, stop: func() { cancel(); <-f.questions.ended }, wanted: b, from: 1}
}

func (l *Loop) allSynced() bool { return len(l.unread()) == 0 }

// unread returns the sources that have not called Synced yet.
func (l *Loop) unread() []string {
	return lists.Keep(l.cfg.Sources, func(s string) bool { return !l.synced[s] })
}

// Ready is closed after the first complete sync: all families hold everything, except
// those that fail, which were warned of.
func (l *Loop) Ready() <-chan struct{} { return l.ready }

// RunAlive is Alive whatever a Sync does: of one that waits for the kernel, a restart would wait too.
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
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, f := range l.families {
		at = times.Earlier(at, f.latest().alive())
	}
	return at
}

// DrainHost has nothing announced from now on, or again what is: this host is drained, or not any more. When
// it returns the Announcer has been told, whatever families are doing: a sync may take its time.
func (l *Loop) DrainHost(drained bool) {
	l.mu.Lock()
	l.drained = drained
	families := slices.Clone(l.families)
	for _, f := range families {
		f.announcing.withhold(drained)
	}
	l.mu.Unlock()
	for _, f := range families {
		f.announcing.tell()
	}
}
