package nftables

import (
	"iter"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
)

// An elementChange is one element before and after a delta.
type elementChange struct {
	set                    set
	key                    string
	existed, exists        bool
	oldData, newData       []byte // data
	oldComment, newComment string
}

// A tableUpdate is what a delta does to our table. A packet on its way through the
// chains meets their old rules and the new elements, so the chains that elements
// move to exist before they move.
type tableUpdate struct {
	freshSets []set
	widened   chainChanges // to serve the elements before and after the delta

	elements   []*elementChange // by set
	narrowed   chainChanges
	unusedSets []set // with no element left
}

// changesStructure reports whether chains change, or which sets exist.
func (u *tableUpdate) changesStructure() bool {
	return len(u.freshSets)+len(u.unusedSets) > 0 || !u.widened.empty() || !u.narrowed.empty()
}

// without returns the sets of list that are not in other.
func without(list, other []set) []set {
	return slices.DeleteFunc(slices.Clone(list), func(s set) bool { return slices.Contains(other, s) })
}

// maxCounts returns the larger count of each set.
func maxCounts(a, b map[set]int) map[set]int {
	counts := maps.Clone(a)
	for s, n := range b {
		counts[s] = max(counts[s], n)
	}
	return counts
}

// chainChanges are the chains that a delta adds, rewrites and removes.
type chainChanges struct {
	fresh, rewritten []*kernelChain
	gone             []string
}

func (ch *chainChanges) empty() bool { return len(ch.fresh)+len(ch.rewritten)+len(ch.gone) == 0 }

// editsOf returns the edits of each set; changes are grouped by set.
func editsOf(changes []*elementChange) (list []edits) {
	for len(changes) > 0 {
		s := changes[0].set
		n := slices.IndexFunc(changes, func(c *elementChange) bool { return c.set != s })
		if n < 0 {
			n = len(changes)
		}
		list = append(list, edits{
			set:     s,
			added:   elementsAfter(changes[:n], func(c *elementChange) bool { return c.exists && !c.existed }),
			changed: elementsAfter(changes[:n], func(c *elementChange) bool { return c.exists && c.existed }),
			removed: elementsAfter(changes[:n], func(c *elementChange) bool { return !c.exists }),
		})
		changes = changes[n:]
	}
	return list
}

// elementsAfter returns the elements of some changes as they will be.
func elementsAfter(changes []*elementChange, of func(*elementChange) bool) iter.Seq[nft.Element] {
	return func(yield func(nft.Element) bool) {
		for _, c := range changes {
			if of(c) && !yield(element([]byte(c.key), c.newData, c.newComment, c.set.isInterval())) {
				return
			}
		}
	}
}
