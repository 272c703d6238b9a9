package layout

import (
	"maps"
	"slices"
)

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
