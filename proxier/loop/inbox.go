package loop

import (
	"net/netip"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An inbox keeps what a Loop is told until it gets to it. Writing never blocks.
type inbox struct {
	wake chan struct{} // room for one

	mu   sync.Mutex
	mail mail
}

// mail is all that came in since the inbox was last emptied.
type mail struct {
	queued             time.Time // when the first of it came
	changes            []source.Changes
	synced             []string
	reconsider         map[source.Key]bool // what is known of the endpoints of these has changed
	node               *policy.Node
	backends           map[policy.Family]proxier.Backend // nil: the same
	full               bool
	repair, look       map[policy.Family]bool
	minimum, lookEvery *time.Duration
	reserved           *[]netip.AddrPort
	fatal              error           // of a family: what Run returns
	told               []chan<- uint64 // are sent the number of the order; each has room for it
}

// empty reports whether nothing came in: then it is a family that woke the Loop.
func (m *mail) empty() bool { return m.queued.IsZero() }

func newInbox() inbox { return inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(write func(*mail)) {
	b.mu.Lock()
	if b.mail.queued.IsZero() {
		b.mail.queued = time.Now()
	}
	write(&b.mail)
	b.mu.Unlock()
	b.ring()
}

// ring wakes the Loop to look at its families.
func (b *inbox) ring() { wake.Once(b.wake) }

func (b *inbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{}
	return m
}

// Apply implements source.Sink.
func (l *Loop) Apply(ch source.Changes) {
	l.inbox.put(func(m *mail) { m.changes = append(m.changes, ch) })
}

// Synced implements source.Sink.
func (l *Loop) Synced(src string) {
	l.inbox.put(func(m *mail) { m.synced = append(m.synced, src) })
}

// Reconsider has services resolved again of whose endpoints more is known, see Conditioner.
func (l *Loop) Reconsider(keys ...source.Key) {
	if len(keys) == 0 {
		return
	}
	l.inbox.put(func(m *mail) {
		if m.reconsider == nil {
			m.reconsider = make(map[source.Key]bool)
		}
		for _, key := range keys {
			m.reconsider[key] = true
		}
	})
}

// SetNode switches to a changed node: services that it touches are resolved again.
func (l *Loop) SetNode(n *policy.Node) { l.inbox.put(func(m *mail) { m.node = n }) }

// SetBackends switches to other backends, for these families only. The former ones
// remain in use until Observer.Holds, or Dropped, is called for their families. A family whose backend is nil
// gets one by a later call.
func (l *Loop) SetBackends(backends map[policy.Family]proxier.Backend) {
	if backends == nil {
		backends = map[policy.Family]proxier.Backend{}
	}
	l.inbox.put(func(m *mail) { m.backends = backends })
}

// SetIntervals changes Config.MinInterval and Config.LookInterval.
func (l *Loop) SetIntervals(minimum, lookEvery time.Duration) {
	l.inbox.put(func(m *mail) { m.minimum, m.lookEvery = &minimum, &lookEvery })
}

// SetReserved changes Config.Reserved.
func (l *Loop) SetReserved(ports []netip.AddrPort) {
	l.inbox.put(func(m *mail) { m.reserved = &ports })
}

// Resync compares everything with the kernel now.
func (l *Loop) Resync() { l.inbox.put(func(m *mail) { m.full = true }) }

// Repair has a family sync what its backend knows to differ in the kernel.
func (l *Loop) Repair(fam policy.Family) {
	l.inbox.put(func(m *mail) { m.repair = with(m.repair, fam) })
}

// Look has a family compared with the kernel now, beside its syncs.
func (l *Loop) Look(fam policy.Family) { l.inbox.put(func(m *mail) { m.look = with(m.look, fam) }) }

func with(set map[policy.Family]bool, fam policy.Family) map[policy.Family]bool {
	if set == nil {
		set = make(map[policy.Family]bool)
	}
	set[fam] = true
	return set
}
