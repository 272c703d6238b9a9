package layout

import (
	"slices"
	"testing"
)

// Every kind of set has its place in the order, except for those that packets fill.
func TestLoadOrder(t *testing.T) {
	for i := range kinds {
		k := kind(i)
		if n := slices.Index(loadOrder, k); (n < 0) != (Set{kind: k}).IsDynamic() {
			t.Errorf("set %q: place %d", Set{kind: k}.Name(), n)
		}
	}
	if n := len(kinds) - len(dynamicSets); len(loadOrder) != n {
		t.Errorf("%d kinds have a place, want %d", len(loadOrder), n)
	}
}
