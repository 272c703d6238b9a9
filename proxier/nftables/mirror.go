package nftables

import (
	"maps"
	"sync"

	"svcproxy/proxier"
)

// held says what the kernel holds, without elements.
type mirror struct {
	tallies map[set]tally
	chains  map[string]*kernelChain
	pools   *poolIDs
	host    proxier.Host
}

// A mirror is what the kernel holds since our last commit. Only the goroutine of
// the syncs writes it, which reads it without the lock; a look reads it beside.
//
// Each change is stamped twice, before it is committed and after: what a look
// found means something if no stamp was set since it began.
type stampedMirror struct {
	mu     sync.Mutex
	mirror *mirror // nil: not known, as no sync was made yet or the last one failed

	clock   uint64         // number of the last stamp
	pending uint64         // stamp of a change that is being committed; 0: none is
	all     uint64         // stamp of everything
	chains  uint64         // of chains, and of which sets there are
	sets    map[set]uint64 // of the elements of sets
}

// know replaces all that is known.
func (m *stampedMirror) set(h *mirror) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mirror = h
	m.clock++
	m.all, m.pending, m.sets = m.clock, 0, map[set]uint64{}
}

// begin makes the mirror what the table is after a delta that is about to be committed.
func (m *stampedMirror) begin(d *dialect, delta *proxier.Delta) (*update, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.mirror.follow(d, delta)
	if err == nil {
		m.stamp(u)
		m.pending = m.clock
	}
	return u, err
}

// end says that the delta is committed.
func (m *stampedMirror) end(u *update) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stamp(u)
	m.pending = 0
}

func (m *stampedMirror) stamp(u *update) {
	m.clock++
	if u.changesStructure() {
		m.chains = m.clock
	}
	for _, c := range u.elements {
		m.sets[c.set] = m.clock
	}
}

// settled returns the stamp of something, given that of its last change; 0 while
// a change of it is being committed.
func (m *stampedMirror) stableStamp(last uint64) uint64 {
	if last = max(last, m.all); last == m.pending {
		return 0
	}
	return last
}

// tally returns what a set should hold and its stamp; ok is false if we do not
// keep such a set, or nothing is known.
func (m *stampedMirror) tally(s set) (t tally, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror != nil {
		t, ok = m.mirror.tallies[s]
	}
	return t, m.stableStamp(m.sets[s]), ok
}

// shape returns the chains, which sets there should be, and their stamp.
func (m *stampedMirror) structure() (chains map[string]*kernelChain, sets []set, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror == nil {
		return nil, nil, 0, false
	}
	return maps.Clone(m.mirror.chains), setsInUse(m.mirror.counts()), m.stableStamp(m.chains), true
}
