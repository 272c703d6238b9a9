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

// NewMirror returns the mirror of a kernel that holds c, whose checksums these are.
func NewMirror(c *Content, checksums map[Set]Checksum, host *policy.Host) *Mirror {
	m := &Mirror{Checksums: checksums, Pools: c.Pools, Host: *host, Flows: c.Flowtable}
	m.chainChanges(c.Chains)
	return m
}

// Counts returns the number of elements of each set that has any.
func (m *Mirror) Counts() map[Set]int {
	counts := make(map[Set]int, len(m.Checksums))
	for s, t := range m.Checksums {
		counts[s] = t.Count
	}
	return counts
}

// Listing returns how the kernel lists the table.
func (m *Mirror) Listing(d *Dialect) *nft.Listing {
	return listing(d, slices.Collect(maps.Values(m.Chains)), m.Counts(), m.Flows)
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

// A TableUpdate is what a delta does to our table. A packet on its way through the
// chains meets their old rules and the new elements, so the chains that elements
// move to exist before they move.
type TableUpdate struct {
	FreshSets  []Set
	Widened    ChainChanges // to serve the elements before and after the delta
	Edits      []*Edits     // of sets whose elements change
	Narrowed   ChainChanges
	UnusedSets []Set // with no element left
}

// ChangesStructure reports whether chains change, or which sets exist.
func (u *TableUpdate) ChangesStructure() bool {
	chains := func(ch *ChainChanges) int { return len(ch.Fresh) + len(ch.Rewritten) + len(ch.Gone) }
	return len(u.FreshSets)+len(u.UnusedSets)+chains(&u.Widened)+chains(&u.Narrowed) > 0
}

// ChainChanges are the chains that a delta adds, rewrites and removes.
type ChainChanges struct {
	Fresh, Rewritten []*Chain
	Gone             []string
}

// Follow applies a delta to the mirror, and returns what that does to the table.
func (m *Mirror) Follow(d *Dialect, delta *policy.Delta) *TableUpdate {
	u, before := &TableUpdate{}, m.Counts()
	u.Edits = m.elementEdits(d, delta)
	next := m.Counts()
	without := func(list, other []Set) []Set {
		return slices.DeleteFunc(list, func(s Set) bool { return slices.Contains(other, s) })
	}
	u.FreshSets, u.UnusedSets = without(SetsInUse(next), SetsInUse(before)), without(SetsInUse(before), SetsInUse(next))
	both := maps.Clone(before)
	for s, n := range next {
		both[s] = max(both[s], n)
	}
	u.Widened, u.Narrowed = m.updateChains(d, before, both), m.updateChains(d, both, next)
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

// elementEdits applies a delta to the checksums, and returns the edits of the sets whose elements differ: the elements
// of the services before it are compared with those after it.
func (m *Mirror) elementEdits(d *Dialect, delta *policy.Delta) (list []*Edits) {
	before, after := newContent(d, m.Pools), newContent(d, m.Pools)
	was, is := renderer{pools: m.Pools, to: before.addElement}, renderer{pools: m.Pools, to: after.addElement}
	for _, c := range delta.Services {
		was.service(c.Old)
		is.service(c.New)
	}
	was.shared(slices.Values(delta.RefusedAddrs.Lost), slices.Values(delta.Hairpins.Lost))
	is.shared(slices.Values(delta.RefusedAddrs.Gained), slices.Values(delta.Hairpins.Gained))
	sets := slices.Collect(maps.Keys(after.Sets))
	for s := range before.Sets {
		if after.Sets[s] == nil {
			sets = append(sets, s)
		}
	}
	slices.SortFunc(sets, Set.Compare)
	for _, s := range sets {
		if e := m.follow(s, before.Sets[s], after.Sets[s]); !e.Empty() {
			list = append(list, e)
		}
	}
	return list
}

// follow compares elements of a set before and after a delta, and adds what differs to its checksum; nil: none.
func (m *Mirror) follow(s Set, before, after *Records) *Edits {
	e, sum := NewEdits(s, after), m.Checksums[s]
	for i := range before.Count() {
		if had := before.Element(i); !e.See(&had) {
			sum.addRecord(before, i, -1)
		}
	}
	for i, found := range e.seen {
		if found != keyEqual {
			sum.addRecord(after, i, 1)
		}
	}
	m.Checksums[s] = sum
	if sum.Count == 0 {
		delete(m.Checksums, s)
	}
	return e
}
