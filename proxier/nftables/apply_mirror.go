package nftables

import (
	"maps"
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A mirror is what the kernel holds, with a checksum of each set in place of its elements.
type mirror struct {
	tallies map[set]tally
	chains  map[string]*kernelChain
	pools   *poolIDs
	host    policy.Host
	flows   *nft.Flowtable // nil: none
}

func (m *mirror) counts() map[set]int {
	counts := make(map[set]int, len(m.tallies))
	for s, t := range m.tallies {
		counts[s] = t.count
	}
	return counts
}

// inOrder returns the chains, each after those that it jumps to.
func (m *mirror) inOrder(d *dialect) ([]*kernelChain, error) {
	l := layout{dialect: d, host: &m.host, counts: m.counts(), flows: m.flows}
	return d.marshal(l.chains())
}

// sameHost reports whether two hosts have the same chains; node addresses are elements.
func sameHost(a, b *policy.Host) bool {
	return a.MarkBit == b.MarkBit && slices.Equal(a.LocalCIDRs, b.LocalCIDRs) &&
		slices.Equal(a.LocalInterfaces, b.LocalInterfaces) && slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs)
}

// follow applies a delta to the mirror, and returns what that does to the table.
func (m *mirror) follow(d *dialect, delta *policy.Delta) (*tableUpdate, error) {
	u := &tableUpdate{elements: m.elementChanges(d.fam, delta)}
	before := m.counts()
	for _, c := range u.elements {
		m.updateTally(c)
	}
	next := m.counts()
	was, is := setsInUse(before), setsInUse(next)
	u.freshSets, u.unusedSets = without(is, was), without(was, is)
	both := maxCounts(before, next)
	var err error
	if u.widened, err = m.updateChains(d, before, both); err == nil {
		u.narrowed, err = m.updateChains(d, both, next)
	}
	return u, err
}

// updateChains replaces the chains as the counts change, and returns how they change.
func (m *mirror) updateChains(d *dialect, from, to map[set]int) (chainChanges, error) {
	if sameLayout(from, to) {
		return chainChanges{}, nil
	}
	l := layout{dialect: d, host: &m.host, counts: to, flows: m.flows}
	chains, err := d.marshal(l.chains())
	if err != nil {
		return chainChanges{}, err
	}
	return m.chainChanges(chains), nil
}

// chainChanges replaces the chains, and returns how they change.
func (m *mirror) chainChanges(chains []*kernelChain) (ch chainChanges) {
	old := m.chains
	m.chains = make(map[string]*kernelChain, len(chains))
	for _, c := range chains {
		switch was := old[c.Name]; {
		case was == nil:
			ch.fresh = append(ch.fresh, c)
		case !slices.EqualFunc(was.rules, c.rules, nft.Rule.Equal):
			ch.rewritten = append(ch.rewritten, c)
		}
		delete(old, c.Name)
		m.chains[c.Name] = c
	}
	ch.gone = slices.Sorted(maps.Keys(old))
	return ch
}

// elementChanges returns the elements that differ after a delta, by set.
func (m *mirror) elementChanges(fam policy.Family, d *policy.Delta) []*elementChange {
	diff := elementDiff{fam: fam, old: map[set]*oldElements{}}
	before := renderer{pools: m.pools, emit: truncateComments(diff.before)}
	after := renderer{pools: m.pools, emit: truncateComments(diff.after)}
	for _, s := range d.Services {
		before.service(s.Old)
	}
	before.shared(d, false)
	for _, s := range d.Services {
		after.service(s.New)
	}
	after.shared(d, true)
	return diff.changes()
}

// updateTally adds a change to the checksum of its set.
func (m *mirror) updateTally(c *elementChange) {
	t := m.tallies[c.set]
	if c.existed {
		t.add([]byte(c.key), c.oldData, c.oldComment, -1)
	}
	if c.exists {
		t.add([]byte(c.key), c.newData, c.newComment, 1)
	}
	m.tallies[c.set] = t
	if t.count == 0 {
		delete(m.tallies, c.set)
	}
}

// A stampedMirror is what the kernel holds since our last commit. Only the goroutine
// of the syncs writes it, and reads it without the lock; a look reads it concurrently.
//
// Each change is stamped twice, before its commit and after: what a look found is
// valid if no stamp was set since the look began.
type stampedMirror struct {
	mu     sync.Mutex
	mirror *mirror // nil: unknown, before the first sync and after a failed one

	clock   uint64         // number of the last stamp
	pending uint64         // stamp of a change that is being committed; 0: none
	all     uint64         // stamp of everything
	chains  uint64         // of chains, and of which sets exist
	sets    map[set]uint64 // of the elements of sets
}

// setMirror replaces the mirror; nil: it is unknown what the kernel holds.
func (m *stampedMirror) setMirror(to *mirror) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mirror = to
	m.clock++
	m.all, m.pending, m.sets = m.clock, 0, map[set]uint64{}
}

// dropFlows takes the flow table, and the rule for it, out of what the kernel should hold.
func (m *stampedMirror) dropFlows(d *dialect) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mirror.flows = nil
	chains, err := m.mirror.inOrder(d)
	if err != nil {
		return err
	}
	m.mirror.chainChanges(chains)
	m.clock++
	m.chains = m.clock
	return nil
}

// beginCommit applies a delta to the mirror, before it is committed to the kernel.
func (m *stampedMirror) beginCommit(d *dialect, delta *policy.Delta) (*tableUpdate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, err := m.mirror.follow(d, delta)
	if err == nil {
		m.stamp(u)
		m.pending = m.clock
	}
	return u, err
}

// endCommit records that the delta was committed.
func (m *stampedMirror) endCommit(u *tableUpdate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stamp(u)
	m.pending = 0
}

func (m *stampedMirror) stamp(u *tableUpdate) {
	m.clock++
	if u.changesStructure() {
		m.chains = m.clock
	}
	for _, c := range u.elements {
		m.sets[c.set] = m.clock
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

// tally returns the checksum that a set should have and its stamp; ok is false if
// there should be no such set, or the mirror is unknown.
func (m *stampedMirror) tally(s set) (t tally, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror != nil {
		t, ok = m.mirror.tallies[s]
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
	return m.mirror.flows
}

// structure returns the chains and sets that should exist, and their stamp.
func (m *stampedMirror) structure() (chains map[string]*kernelChain, sets []set, stamp uint64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mirror == nil {
		return nil, nil, 0, false
	}
	return maps.Clone(m.mirror.chains), setsInUse(m.mirror.counts()), m.stableStamp(m.chains), true
}
