package layout

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Mirror is what the kernel holds, with a checksum of each set in place of its elements.
type Mirror struct {
	Checksums map[Set]Checksum
	Chains    map[string]*Chain
	Pools     *PoolIDs
	Host      policy.Host
	Flows     *nft.Flowtable // nil: none
}

// Counts returns the number of elements of each set that has any.
func (m *Mirror) Counts() map[Set]int {
	counts := make(map[Set]int, len(m.Checksums))
	for s, t := range m.Checksums {
		counts[s] = t.Count
	}
	return counts
}

// InOrder returns the chains, each after those that it jumps to.
func (m *Mirror) InOrder(d *Dialect) []*Chain { return m.chainsOf(d, m.Counts()) }

func (m *Mirror) chainsOf(d *Dialect, counts map[Set]int) []*Chain {
	l := chainRenderer{Dialect: d, host: &m.Host, counts: counts, flowtable: m.Flows}
	return l.chains()
}

// SetFlows gives the table another flow table, and the rule for it; nil: none.
func (m *Mirror) SetFlows(d *Dialect, flows *nft.Flowtable) {
	m.Flows = flows
	m.chainChanges(m.InOrder(d))
}

// SameHost reports whether two hosts have the same chains; node addresses are elements.
func SameHost(a, b *policy.Host) bool {
	return a.MarkBit == b.MarkBit && slices.Equal(a.LocalCIDRs, b.LocalCIDRs) &&
		slices.Equal(a.LocalInterfaces, b.LocalInterfaces) && slices.Equal(a.ServiceCIDRs, b.ServiceCIDRs)
}

// Follow applies a delta to the mirror, and returns what that does to the table.
func (m *Mirror) Follow(d *Dialect, delta *policy.Delta) *TableUpdate {
	u := &TableUpdate{elements: m.elementChanges(d.Fam, delta)}
	u.Edits = editsOf(u.elements)
	before := m.Counts()
	for _, c := range u.elements {
		m.updateChecksum(c)
	}
	next := m.Counts()
	was, is := SetsInUse(before), SetsInUse(next)
	u.FreshSets, u.UnusedSets = without(is, was), without(was, is)
	both := maxCounts(before, next)
	u.Widened = m.updateChains(d, before, both)
	u.Narrowed = m.updateChains(d, both, next)
	return u
}

// updateChains replaces the chains as the counts change, and returns how they change.
func (m *Mirror) updateChains(d *Dialect, from, to map[Set]int) ChainChanges {
	if sameLayout(from, to) {
		return ChainChanges{}
	}
	return m.chainChanges(m.chainsOf(d, to))
}

// chainChanges replaces the chains, and returns how they change.
func (m *Mirror) chainChanges(chains []*Chain) (ch ChainChanges) {
	old := m.Chains
	m.Chains = make(map[string]*Chain, len(chains))
	for _, c := range chains {
		switch was := old[c.Name]; {
		case was == nil:
			ch.Fresh = append(ch.Fresh, c)
		case !slices.EqualFunc(was.Rules, c.Rules, nft.Rule.Equal):
			ch.Rewritten = append(ch.Rewritten, c)
		}
		delete(old, c.Name)
		m.Chains[c.Name] = c
	}
	ch.Gone = slices.Sorted(maps.Keys(old))
	return ch
}

// elementChanges returns the elements that differ after a delta, by set.
func (m *Mirror) elementChanges(fam policy.Family, d *policy.Delta) []*elementChange {
	diff := elementDiff{fam: fam, old: map[Set]*oldElements{}}
	before := renderer{pools: m.Pools, to: diff.before}
	after := renderer{pools: m.Pools, to: diff.after}
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

// updateChecksum adds a change to the checksum of its set.
func (m *Mirror) updateChecksum(c *elementChange) {
	t := m.Checksums[c.set]
	if c.existed {
		t.Add([]byte(c.key), c.oldData, c.oldComment, -1)
	}
	if c.exists {
		t.Add([]byte(c.key), c.newData, c.newComment, 1)
	}
	m.Checksums[c.set] = t
	if t.Count == 0 {
		delete(m.Checksums, c.set)
	}
}
