package layout

import (
	"iter"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// An elementChange is one element before and after a delta.
type elementChange struct {
	set                    Set
	key                    string
	existed, exists        bool
	oldData, newData       []byte
	oldComment, newComment string
}

// A TableUpdate is what a delta does to our table. A packet on its way through the
// chains meets their old rules and the new elements, so the chains that elements
// move to exist before they move.
type TableUpdate struct {
	FreshSets []Set
	Widened   ChainChanges // to serve the elements before and after the delta

	elements   []*elementChange // by set
	Edits      []Edits          // the same
	Narrowed   ChainChanges
	UnusedSets []Set // with no element left
}

// ChangesStructure reports whether chains change, or which sets exist.
func (u *TableUpdate) ChangesStructure() bool {
	return len(u.FreshSets)+len(u.UnusedSets) > 0 || !u.Widened.empty() || !u.Narrowed.empty()
}

// without returns the sets of list that are not in other.
func without(list, other []Set) []Set {
	return slices.DeleteFunc(slices.Clone(list), func(s Set) bool { return slices.Contains(other, s) })
}

// maxCounts returns the larger count of each set.
func maxCounts(a, b map[Set]int) map[Set]int {
	counts := maps.Clone(a)
	for s, n := range b {
		counts[s] = max(counts[s], n)
	}
	return counts
}

// ChainChanges are the chains that a delta adds, rewrites and removes.
type ChainChanges struct {
	Fresh, Rewritten []*Chain
	Gone             []string
}

func (ch *ChainChanges) empty() bool { return len(ch.Fresh)+len(ch.Rewritten)+len(ch.Gone) == 0 }

// Edits are the changes to the elements of one set.
type Edits struct {
	Set                     Set
	Added, Changed, Removed iter.Seq[nft.Element] // nil: none
}

// editsOf returns the edits of each set; changes are grouped by set.
func editsOf(changes []*elementChange) (list []Edits) {
	for len(changes) > 0 {
		s := changes[0].set
		n := slices.IndexFunc(changes, func(c *elementChange) bool { return c.set != s })
		if n < 0 {
			n = len(changes)
		}
		list = append(list, Edits{
			Set:     s,
			Added:   elementsAfter(changes[:n], func(c *elementChange) bool { return c.exists && !c.existed }),
			Changed: elementsAfter(changes[:n], func(c *elementChange) bool { return c.exists && c.existed }),
			Removed: elementsAfter(changes[:n], func(c *elementChange) bool { return !c.exists }),
		})
		changes = changes[n:]
	}
	return list
}

// elementsAfter returns the elements of some changes as they will be.
func elementsAfter(changes []*elementChange, of func(*elementChange) bool) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for _, c := range changes {
			if of(c) && !yield(element([]byte(c.key), c.newData, c.newComment, c.set.IsInterval())) {
				return
			}
		}
	}
}
