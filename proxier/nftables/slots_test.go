package nftables

import (
	"math"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"svcproxy/proxier"
)

// weighted returns targets with the given weights.
func weighted(weights ...uint16) []proxier.Target {
	targets := make([]proxier.Target, len(weights))
	for i, w := range weights {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		targets[i] = proxier.Target{AddrPort: netip.AddrPortFrom(a, 80), Weight: w}
	}
	return targets
}

func TestSpread(t *testing.T) {
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

func TestSpreadRounds(t *testing.T) {
	counts := map[uint32]int{}
	for _, target := range spread(nil, weighted(65535, 1, 32768)) {
		counts[target]++
	}
	want := map[uint32]int{0: 667, 1: 1, 2: 332}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("slots of each target (-want +got):\n%s", diff)
	}
}

func TestSizes(t *testing.T) {
	tests := []struct {
		slots        int
		size, surely uint32
	}{
		{1, 1, 1}, {31, 31, 31}, {32, 32, 32},
		{33, 36, 33}, {36, 36, 33}, {37, 40, 37}, {64, 64, 61}, {65, 72, 65}, {128, 128, 121},
		{129, 144, 129}, {1000, 1024, 961}, {1025, 1152, 1025}, {65535, 65536, 61441},
	}
	for _, tt := range tests {
		if got := size(tt.slots); got != tt.size {
			t.Errorf("size of %d slots: got %d, want %d", tt.slots, got, tt.size)
		}
		if got := surely(tt.size); got != tt.surely {
			t.Errorf("slots that size %d surely has: got %d, want %d", tt.size, got, tt.surely)
		}
	}
	seen := map[uint32]bool{}
	for n := 1; n <= 65536; n++ {
		s := size(n)
		if seen[s] = true; int(s) < n || int(surely(s)) > n {
			t.Fatalf("%d slots: size %d, of which %d are surely there", n, s, surely(s))
		}
	}
	if want := 32 + 8*11; len(seen) != want {
		t.Errorf("sizes up to 65536: got %d, want %d", len(seen), want)
	}
}

// shares returns how likely each target is: a number below the size is drawn
// twice, then one that falls on a slot for sure.
func shares(targets []proxier.Target) []float64 {
	slots := spread(nil, targets)
	size := float64(size(len(slots)))
	sure := int(surely(uint32(size)))
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

// No target is more than 5 % off its share, whatever their number, as long as
// weights need not be rounded.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		largest := rapid.Uint16Range(1, 20).Draw(t, "largest weight")
		n := rapid.IntRange(1, manySlots/int(largest)).Draw(t, "targets")
		if largest == 1 {
			n *= 3
		}
		var sum float64
		weights := make([]uint16, n)
		for i := range weights {
			weights[i] = rapid.Uint16Range(1, largest).Draw(t, "weight")
			sum += float64(weights[i])
		}
		for i, share := range shares(weighted(weights...)) {
			want := float64(weights[i]) / sum
			if math.Abs(share/want-1) > 0.05 {
				t.Fatalf("target %d of %d, weight %d: share %v, want %v", i, n, weights[i], share, want)
			}
		}
	})
}
