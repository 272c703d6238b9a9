package nftables

import (
	"maps"
	"sync"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A stampedMirror is what the kernel holds since our last commit. Only the goroutine
// of the syncs writes it, and reads it without the lock; a look reads it concurrently.
//
// Each change is stamped twice, before its commit and after: what a look found is
// valid if no stamp was set since the look began.
type stampedMirror struct {
	mu     sync.Mutex
	mirror *layout.Mirror // nil: unknown, before the first sync and after a failed one

	clock   uint64                // number of the last stamp
	pending uint64                // stamp of a change that is being committed; 0: none
	all     uint64                // stamp of everything
	chains  uint64                // of chains, and of which sets exist
	sets    map[layout.Set]uint64 // of the elements of sets
}

// setMirror replaces the mirror; nil: it is unknown what the kernel holds.
func (m *stampedMirror) setMirror(to *layout.Mirror) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mirror = to
	m.clock++
	m.all, m.pending, m.sets = m.clock, 0, map[layout.Set]uint64{}
}

// dropFlows takes the flow table, and the rule for it, out of what the kernel should hold.
func (m *stampedMirror) dropFlows(d *layout.Dialect) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mirror.SetFlows(d, nil)
	m.clock++
	m.chains = m.clock
}

// beginCommit applies a delta to the mirror, before it is committed to the kernel.
func (m *stampedMirror) beginCommit(d *layout.Dialect, delta *policy.Delta) *layout.TableUpdate {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.mirror.Follow(d, delta)
	m.stamp(u)
	m.pending = m.clock
	return u
}

// endCommit records that the delta was committed.
func (m *stampedMirror) endCommit(u *layout.TableUpdate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stamp(u)
	m.pending = 0
}

func (m *stampedMirror) stamp(u *layout.TableUpdate) {
	m.clock++
	if u.ChangesStructure() {
		m.chains = m.clock
	}
	for _, e := range u.Edits {
		m.sets[e.Set] = m.clock
	}
}

// stableStamp returns the stamp of an object, given that of its last change; 0 while
// a change of it is being committed.
func (m *stampedMirror) stableStamp(last uint64) uint64 {
	if last = max(last, m.all); last == m.pending {
		return 0
	}
	return last
}

// checksum returns the checksum that a set should have and its stamp; ok is false if
// there should be no such set, or the mirror is unknown.
func (m *stampedMirror) checksum(s layout.Set) (t layout.Checksum, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror != nil {
		t, ok = m.mirror.Checksums[s]
	}
	return t, m.stableStamp(m.sets[s]), ok
}

// flowtable returns the flow table that there should be; nil: none.
func (m *stampedMirror) flowtable() *nft.Flowtable {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror == nil {
		return nil
	}
	return m.mirror.Flows
}

// structure returns the chains and sets that should exist, and their stamp.
func (m *stampedMirror) structure() (chains map[string]*layout.Chain, sets []layout.Set, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror == nil {
		return nil, nil, 0, false
	}
	return maps.Clone(m.mirror.Chains), layout.SetsInUse(m.mirror.Counts()), m.stableStamp(m.chains), true
}
