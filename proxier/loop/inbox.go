package loop

import (
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An inbox is what a Loop is told by.
type inbox struct{ mailbox[mail] }

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
	replies            []chan<- uint64 // are sent the number of the order; each has room for it
}

func (b *inbox) put(write func(*mail)) {
	b.mailbox.put(func(m *mail) {
		if m.queued.IsZero() {
			*m = mail{queued: time.Now(), reconsider: make(map[source.Key]bool), repair: make(map[policy.Family]bool), look: make(map[policy.Family]bool)}
		}
		write(m)
	})
}

// Apply implements source.Sink.
func (b *inbox) Apply(ch source.Changes) {
	b.put(func(m *mail) { m.changes = append(m.changes, ch) })
}

// Synced implements source.Sink.
func (b *inbox) Synced(src string) {
	b.put(func(m *mail) { m.synced = append(m.synced, src) })
}

// Reconsider has services resolved again of whose endpoints more is known, see Conditioner.
func (b *inbox) Reconsider(keys ...source.Key) {
	if len(keys) == 0 {
		return
	}
	b.put(func(m *mail) {
		for _, key := range keys {
			m.reconsider[key] = true
		}
	})
}

// SetNode switches to a changed node: services that it touches are resolved again.
func (b *inbox) SetNode(n *policy.Node) { b.put(func(m *mail) { m.node = n }) }

// SetBackends switches to other backends, for these families only. The former ones
// remain in use until Observer.Holds, or Dropped, is called for their families. A family whose backend is nil
// gets one by a later call.
func (b *inbox) SetBackends(backends map[policy.Family]proxier.Backend) {
	if backends == nil {
		backends = map[policy.Family]proxier.Backend{}
	}
	b.put(func(m *mail) { m.backends = backends })
}

// SetIntervals changes Config.MinInterval and Config.LookInterval.
func (b *inbox) SetIntervals(minimum, lookEvery time.Duration) {
	b.put(func(m *mail) { m.minimum, m.lookEvery = &minimum, &lookEvery })
}

// SetReserved changes Config.Reserved.
func (b *inbox) SetReserved(ports []netip.AddrPort) {
	b.put(func(m *mail) { m.reserved = &ports })
}

// FullSync compares everything with the kernel now.
func (b *inbox) FullSync() { b.put(func(m *mail) { m.full = true }) }

// Repair has a family sync, as its backend has heard of a foreign change.
func (b *inbox) Repair(fam policy.Family) {
	b.put(func(m *mail) { m.repair[fam] = true })
}

// Look has a family compared with the kernel now, beside its syncs.
func (b *inbox) Look(fam policy.Family) { b.put(func(m *mail) { m.look[fam] = true }) }
