package layout

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Each target has its number of slots, wherever they are.
func TestPlacedKeepsSlotCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.Uint64Range(1, slotsEach), 3, 300).Draw(t, "counts")
		n := int(sumOf(want))
		if n <= exactSizes {
			return
		}
		got := make([]uint64, len(want))
		for _, target := range spreadStably(nil, weighted(equal(len(want))...), want, n) {
			got[target]++
		}
		if !slices.Equal(got, want) {
			t.Fatalf("slots: got %v, want %v", got, want)
		}
	})
}

// What comes between two others leaves the slots of those where they are, except for a few: the order of targets,
// which it changes, is not that of slots.
func TestPlacedMovesFew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(exactSizes+2, 3000).Draw(t, "targets")
		all := weighted(equal(n)...)
		i := rapid.IntRange(0, n-1).Draw(t, "which")
		before, after := spread(nil, slices.Delete(slices.Clone(all), i, i+1)), spread(nil, all)
		for slot, target := range before {
			if int(target) >= i {
				before[slot]++ // as they are numbered after it
			}
		}
		if blocksOf(n) != blocksOf(n-1) {
			return // a size ends here, too
		}
		if got, most := movedSlots(before, after), mostChanged(1, n); got > most {
			t.Fatalf("%d of %d slots change, want %d at most", got, n, most)
		}
	})
}

// equal returns n equal weights.
func equal(n int) []uint16 { return slices.Repeat([]uint16{1}, n) }

// mostChanged returns how many of n slots change at most where some come or go, and the map stays: each
// of them moves about ln(n) others, see placed, and never five times as many.
func mostChanged(some, n int) int { return int(float64(some) * (1 + 5*math.Log(float64(n)))) }

// movedSlots returns in how many slots two layouts of the same targets differ.
func movedSlots(a, b []uint32) (n int) {
	if len(a) > len(b) {
		a, b = b, a
	}
	n = len(b) - len(a)
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}
