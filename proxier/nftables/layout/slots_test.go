package layout

import (
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// weighted returns targets with the given weights.
func weighted(weights ...uint16) []policy.Target {
	targets := make([]policy.Target, len(weights))
	for i, w := range weights {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		targets[i] = policy.NewTarget(netip.AddrPortFrom(a, 80), w)
	}
	return targets
}

func TestSpreadOfSlots(t *testing.T) {
	tests := []struct {
		name    string
		weights []uint16
		want    []uint32
	}{
		{"no target", nil, nil},
		{"one target", []uint16{65535}, []uint32{0}},
		{"equal weights", []uint16{7, 7, 7}, []uint32{0, 1, 2}},
		{"common divisor", []uint16{200, 300}, []uint32{0, 0, 1, 1, 1}},
		{"coprime", []uint16{1, 2, 3}, []uint32{0, 1, 1, 2, 2, 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, spread(nil, weighted(tt.weights...))); diff != "" {
				t.Errorf("slots (-want +got):\n%s", diff)
			}
		})
	}
}

// countsOf returns how many slots each of some targets has.
func countsOf(targets []policy.Target) []int {
	counts := make([]int, len(targets))
	for _, target := range spread(nil, targets) {
		counts[target]++
	}
	return counts
}

func TestSpreadRounds(t *testing.T) {
	tests := []struct {
		weights []uint16
		want    []int
	}{
		{[]uint16{499, 500}, []int{1, 1}},
		{[]uint16{1000, 501}, []int{2, 1}},
		{[]uint16{16, 17}, []int{10, 11}}, // an even share is 3 % off
		{[]uint16{1, 99}, []int{1, 98}},
		{[]uint16{1, 128}, []int{1, 126}},
		{[]uint16{1, 999}, []int{1, 127}},
		{[]uint16{1, 65535}, []int{1, 127}},
		{[]uint16{65535, 1, 32768}, []int{85, 1, 42}},
		{[]uint16{65535, 3, 2, 1}, []int{125, 1, 1, 1}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, countsOf(weighted(tt.weights...))); diff != "" {
			t.Errorf("weights %v: slots (-want +got):\n%s", tt.weights, diff)
		}
	}
}

func TestSizesOfMaps(t *testing.T) {
	tests := []struct {
		slots       int
		size, least uint32
	}{
		{1, 1, 1}, {31, 31, 31}, {32, 32, 32},
		{33, 36, 33}, {36, 36, 33}, {37, 40, 37}, {64, 64, 61}, {65, 72, 65}, {128, 128, 121},
		{129, 144, 129}, {1000, 1024, 961}, {1025, 1152, 1025}, {65535, 65536, 61441},
	}
	for _, tt := range tests {
		if got := sizeClass(tt.slots); got != tt.size {
			t.Errorf("size of %d slots: got %d, want %d", tt.slots, got, tt.size)
		}
		if got := minSlots(tt.size); got != tt.least {
			t.Errorf("least slots of size %d: got %d, want %d", tt.size, got, tt.least)
		}
	}
	seen := map[uint32]bool{}
	for n := 1; n <= 65536; n++ {
		s := sizeClass(n)
		if seen[s] = true; int(s) < n || int(minSlots(s)) > n {
			t.Fatalf("%d slots: size %d, which has %d at least", n, s, minSlots(s))
		}
	}
	if want := 32 + 8*11; len(seen) != want {
		t.Errorf("sizes up to 65536: got %d, want %d", len(seen), want)
	}
}

// shares returns how likely each target is: a number below the size is drawn
// twice, then one that falls on a slot for sure.
func shares(targets []policy.Target) []float64 {
	slots := spread(nil, targets)
	size := float64(sizeClass(len(slots)))
	sure := int(minSlots(uint32(size)))
	missed := 1 - float64(len(slots))/size
	out := make([]float64, len(targets))
	for i, target := range slots {
		out[target] += (1 + missed) / size
		if i < sure {
			out[target] += missed * missed / float64(sure)
		}
	}
	return out
}

// No target is more than 2 % off its share, whatever their number, as long as
// weights need not be rounded.
func TestSharesWithinTwoPercent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "targets")
		targets := make([]uint16, n)
		for i := range targets {
			targets[i] = rapid.Uint16Range(1, slotsEach).Draw(t, "weight")
		}
		near(t, weighted(targets...))
	})
}

// near fails the test if a target is more than 2 % off its share, of itself.
func near(t *rapid.T, targets []policy.Target) {
	sum := float64(policy.WeightOf(targets))
	for i, share := range shares(targets) {
		if want := float64(targets[i].Weight) / sum; math.Abs(share/want-1) > 0.02+1e-9 {
			t.Fatalf("target %d of %d, weight %d: share %v, want %v", i, len(targets), targets[i].Weight, share, want)
		}
	}
}

// Weights of all kinds have few slots, and shares within 2 %. Where there are not
// enough slots for that, nobody is off by more than one, and by what those who have less
// than one have to get.
func TestSharesOfRoundedWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 80).Draw(t, "targets")
		most := rapid.SampledFrom([]uint16{100, 1000, 65535}).Draw(t, "largest weight")
		least := rapid.SampledFrom([]uint16{1, most / 10, most / 2}).Draw(t, "least weight")
		list := make([]uint16, n)
		for i := range list {
			list[i] = rapid.Uint16Range(least, most).Draw(t, "weight")
		}
		targets := weighted(list...)
		limit := max(fewSlots, slotsEach*n)
		counts, slots := countsOf(targets), 0
		for _, count := range counts {
			slots += count
		}
		if slots > limit || slots > slotCount(targets) {
			t.Fatalf("%d slots, want %d at most, as was said before %d", slots, limit, slotCount(targets))
		}
		if slots < limit {
			near(t, targets)
			return
		}
		sum, small := float64(policy.WeightOf(targets)), 0.0
		for _, w := range list {
			small += max(0, 1-float64(w)*float64(limit)/sum)
		}
		for i, count := range counts {
			want := float64(list[i]) * float64(limit) / sum
			if count < 1 || float64(count) > want+1 || float64(count) < want-1-small {
				t.Fatalf("weight %d of %v: %d of %d slots, want %.2f", list[i], sum, count, limit, want)
			}
		}
	})
}

// A slow start, in which one target has tenths of its weight, has a bounded number of slots, and
// no target more than 2 % off its share. Few targets have one each at the end.
func TestSlowStartSlots(t *testing.T) {
	for _, n := range []int{2, 3, 10, 100, 1000} {
		for share := uint16(1); share <= tenths; share++ {
			targets := weighted(slices.Repeat([]uint16{10 * tenths}, n)...)
			for i := range targets {
				targets[i].Settled = 10 * tenths
			}
			targets[n/2].Weight = 10 * share
			slots := len(spread(nil, targets))
			if most := tenths * n; slots > most || share == tenths && n <= fewTargets && slots != n {
				t.Errorf("%d targets, one with %d tenths: %d slots, want %d at most, and one each at the end", n, share, slots, most)
			}
			sum := float64(policy.WeightOf(targets))
			for i, got := range shares(targets) {
				if want := float64(targets[i].Weight) / sum; math.Abs(got/want-1) > 0.02+1e-9 {
					t.Errorf("%d targets, one with %d tenths: target %d has %v, want %v", n, share, i, got, want)
				}
			}
		}
	}
}

// Weights that need rounding are shared out in well below the time that their
// elements take.
func BenchmarkSpread(b *testing.B) {
	list := make([]uint16, 1000)
	for i := range list {
		list[i] = uint16(65535 - 17*i)
	}
	list[0] = 1
	targets := weighted(list...)
	for b.Loop() {
		spread(nil, targets)
	}
}
