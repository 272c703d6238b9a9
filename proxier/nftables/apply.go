package nftables

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"math"
	"slices"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// A change is one element before and after.
type change struct {
	set                    set
	key                    string
	existed, exists        bool
	oldData, newData       []byte // data
	oldComment, newComment string // comments
}

func (c *change) isNoop() bool {
	return c.existed == c.exists && string(c.oldData) == string(c.newData) && c.oldComment == c.newComment
}

// changeKey is what makes an element the same.
type elementKey struct {
	set set
	key string
}

// An update is what a delta does to our table. A packet on its way through the
// chains meets their old rules and the new elements, so chains that lead to what
// elements move to are there before they do.
type update struct {
	freshSets []set
	widened   chainChanges // to lead to what was and to what will be

	elements  []*change // by set
	narrowed  chainChanges
	staleSets []set
}

// reshapes reports whether chains change, or which sets there are.
func (u *update) changesStructure() bool {
	return len(u.freshSets)+len(u.staleSets) > 0 || !u.widened.empty() || !u.narrowed.empty()
}

// follow makes h what it is after a delta, and returns what that does to the table.
func (h *mirror) follow(d *dialect, delta *proxier.Delta) (*update, error) {
	u := &update{elements: h.elementChanges(d.fam, delta)}
	before := h.counts()
	for _, c := range u.elements {
		h.count(c)
	}
	next := h.counts()
	was, is := setsInUse(before), setsInUse(next)
	u.freshSets, u.staleSets = without(is, was), without(was, is)
	both := maxCounts(before, next)
	var err error
	if u.widened, err = h.updateChains(d, before, both); err == nil {
		u.narrowed, err = h.updateChains(d, both, next)
	}
	return u, err
}

// reshape makes the chains of h follow from some counts to others.
func (h *mirror) updateChains(d *dialect, from, to map[set]int) (chainChanges, error) {
	if sameLayout(from, to) {
		return chainChanges{}, nil
	}
	l := layout{dialect: d, host: &h.host, counts: to}
	chains, err := d.marshal(l.chains())
	if err != nil {
		return chainChanges{}, err
	}
	return h.chainChanges(chains), nil
}

// most returns the greater count of each set.
func maxCounts(a, b map[set]int) map[set]int {
	counts := maps.Clone(a)
	for s, n := range b {
		counts[s] = max(counts[s], n)
	}
	return counts
}

// without returns the sets of list that are not in other.
func without(list, other []set) []set {
	return slices.DeleteFunc(slices.Clone(list), func(s set) bool { return slices.Contains(other, s) })
}

// elementChanges returns the elements that differ after a delta, by set.
func (h *mirror) elementChanges(fam proxier.Family, d *proxier.Delta) []*change {
	all := map[elementKey]*change{}
	at := func(s set, key []byte) *change {
		c := all[elementKey{s, string(key)}]
		if c == nil {
			c = &change{set: s, key: string(key)}
			all[elementKey{s, c.key}] = c
		}
		return c
	}
	before := renderer{fam: fam, pools: h.pools, emit: truncateComments(func(s set, key, data []byte, note string) {
		c := at(s, key)
		c.existed, c.oldData, c.oldComment = true, slices.Clone(data), note
	})}
	after := renderer{fam: fam, pools: h.pools, emit: truncateComments(func(s set, key, data []byte, note string) {
		c := at(s, key)
		c.exists, c.newData, c.newComment = true, slices.Clone(data), note
	})}
	for _, s := range d.Services {
		if s.Old != nil {
			before.service(s.Old)
		}
		if s.New != nil {
			after.service(s.New)
		}
	}
	before.shared(d, &h.host, false)
	after.shared(d, &h.host, true)
	return sortedChanges(all)
}

// sorted returns the changes that change something, those of a set together.
func sortedChanges(all map[elementKey]*change) []*change {
	list := make([]*change, 0, len(all))
	for _, c := range all {
		if !c.isNoop() {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(x, y *change) int {
		return cmp.Or(x.set.compare(y.set), cmp.Compare(x.key, y.key))
	})
	return list
}

// apply makes the kernel follow a delta, without looking at it.
func (b *Backend) apply(ctx context.Context, d *proxier.Delta) error {
	for _, piece := range chunks(d, max(1, min(chunkElements, b.conn.MaxBatch()/elementBytes))) {
		if err := b.applyChunk(ctx, piece); err != nil {
			return err
		}
	}
	return b.revokeLost(ctx, d.Services)
}

// applyPiece makes the kernel follow a delta in one transaction, if the kernel
// takes so much at once, but for chains that are needed before.
func (b *Backend) applyChunk(ctx context.Context, d *proxier.Delta) error {
	u, err := b.begin(b.dialect, d)
	if err != nil {
		return err
	}
	w := b.writer(ctx, math.MaxInt)
	for _, s := range u.freshSets {
		w.room(objectSize)
		b.batch.AddSet(s.define(b.fam))
	}
	w.changeChains(u.widened)
	w.flush()
	w.elements(editsOf(u.elements))
	w.changeChains(u.narrowed)
	for _, s := range u.staleSets {
		w.room(objectSize)
		b.batch.DeleteSet(s.name())
	}
	if w.flush(); w.err == nil {
		b.end(u)
	}
	return w.err
}

// count takes a change into the tallies.
func (h *mirror) count(c *change) {
	t := h.tallies[c.set]
	if c.existed {
		t.add([]byte(c.key), c.oldData, c.oldComment, -1)
	}
	if c.exists {
		t.add([]byte(c.key), c.newData, c.newComment, 1)
	}
	h.tallies[c.set] = t
	if t.count == 0 {
		delete(h.tallies, c.set)
	}
}

func (h *mirror) counts() map[set]int {
	counts := make(map[set]int, len(h.tallies))
	for s, t := range h.tallies {
		counts[s] = t.count
	}
	return counts
}

// chainChanges are chains that a delta makes, rewrites and removes.
type chainChanges struct {
	fresh, rewritten []*kernelChain
	gone             []string
}

func (ch *chainChanges) empty() bool { return len(ch.fresh)+len(ch.rewritten)+len(ch.gone) == 0 }

// chainChanges makes chains those of h, and returns how they change.
func (h *mirror) chainChanges(chains []*kernelChain) (ch chainChanges) {
	old := h.chains
	h.chains = make(map[string]*kernelChain, len(chains))
	for _, c := range chains {
		switch was := old[c.Name]; {
		case was == nil:
			ch.fresh = append(ch.fresh, c)
		case !slices.EqualFunc(was.rules, c.rules, nft.Rule.Equal):
			ch.rewritten = append(ch.rewritten, c)
		}
		delete(old, c.Name)
		h.chains[c.Name] = c
	}
	ch.gone = slices.Sorted(maps.Keys(old))
	return ch
}

// sameShape tells whether the chains of two layouts are surely alike.
func sameLayout(a, b map[set]int) bool {
	if len(a) != len(b) {
		return false
	}
	for s, n := range a {
		if m := b[s]; m == 0 || s.isOrdered() && log2(n) != log2(m) {
			return false
		}
	}
	return true
}

// editsOf returns what changes do to each set; they are sorted by set.
func editsOf(changes []*change) (list []edits) {
	for len(changes) > 0 {
		s := changes[0].set
		n := slices.IndexFunc(changes, func(c *change) bool { return c.set != s })
		if n < 0 {
			n = len(changes)
		}
		list = append(list, edits{
			set:     s,
			added:   elementsAfter(changes[:n], func(c *change) bool { return c.exists && !c.existed }),
			changed: elementsAfter(changes[:n], func(c *change) bool { return c.exists && c.existed }),
			removed: elementsAfter(changes[:n], func(c *change) bool { return !c.exists }),
		})
		changes = changes[n:]
	}
	return list
}

// elementsAfter returns the elements of some changes as they will be.
func elementsAfter(changes []*change, of func(*change) bool) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for _, c := range changes {
			if of(c) && !yield(element([]byte(c.key), c.newData, c.newComment, c.set.isInterval())) {
				return
			}
		}
	}
}
