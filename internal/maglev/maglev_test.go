package maglev

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// weighted returns endpoints with these weights, of one of several networks.
func weighted(network int, weights ...uint16) []Endpoint {
	list := make([]Endpoint, len(weights))
	for i, w := range weights {
		a := netip.AddrFrom4([4]byte{10, byte(network), byte(i >> 8), byte(i)})
		list[i] = Endpoint{AddrPort: netip.AddrPortFrom(a, 8080), Weight: w}
	}
	return list
}

func equal(network, n int) []Endpoint {
	weights := make([]uint16, n)
	for i := range weights {
		weights[i] = 1
	}
	return weighted(network, weights...)
}

// owners returns whose each slot is.
func owners(list []Endpoint, size int) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, size)
	for _, i := range Fill(nil, size, list) {
		out = append(out, list[i].AddrPort)
	}
	return out
}

func TestSizesArePrime(t *testing.T) {
	before := 0
	for _, s := range append(slices.Clone(sizes), struct{ endpoints, slots int }{MaxSize, MaxSize}) {
		if !big.NewInt(int64(s.slots)).ProbablyPrime(20) {
			t.Errorf("%d is no prime", s.slots)
		}
		if Size(s.endpoints) != s.slots || Size(before+1) != s.slots {
			t.Errorf("%d to %d endpoints have %d and %d slots, want %d", before+1, s.endpoints, Size(before+1), Size(s.endpoints), s.slots)
		}
		before = s.endpoints
	}
	if Size(1<<20) != MaxSize {
		t.Errorf("a million endpoints have %d slots", Size(1<<20))
	}
}

// The table is the same in all versions: hosts of different ones stand side by side.
func TestTableStaysAsItIs(t *testing.T) {
	got := fmt.Sprint(Fill(nil, 13, weighted(0, 1, 2, 7)))
	if want := "[2 1 1 2 2 2 2 2 1 2 2 2 0]"; got != want {
		t.Errorf("table %s, want %s", got, want)
	}
	v6 := []Endpoint{{AddrPort: netip.MustParseAddrPort("[fd00::1]:80"), Weight: 1}, {AddrPort: netip.MustParseAddrPort("[fd00::2]:80"), Weight: 1}}
	if got, want := fmt.Sprint(Fill(nil, 13, v6)), "[0 0 1 1 0 0 1 0 0 1 0 1 1]"; got != want {
		t.Errorf("table of IPv6 %s, want %s", got, want)
	}
}

// Each endpoint has its share, to one slot, and one of any weight has a slot.
func TestShares(t *testing.T) {
	for _, weights := range [][]uint16{{1, 2, 7}, {1}, {1, 1, 1}, {10, 10, 9}, {65535, 65534}, {65535, 1}, {3, 30, 300, 3000}} {
		sum := 0
		for _, w := range weights {
			sum += int(w)
		}
		size := Size(len(weights))
		counts := make([]int, len(weights))
		for _, i := range Fill(nil, size, weighted(0, weights...)) {
			counts[i]++
		}
		for i, w := range weights {
			if exact := float64(size) * float64(w) / float64(sum); float64(counts[i]) > max(1, exact+1) || float64(counts[i]) < max(1, exact-1) {
				t.Errorf("weights %v: endpoint %d has %d of %d slots, want %.1f", weights, i, counts[i], size, exact)
			}
		}
	}
}

// Of 20 endpoints, whichever leaves: fewer than 2 % of the slots of the others move.
func TestDisruption(t *testing.T) {
	for _, tt := range []struct {
		endpoints int
		most      float64
	}{{2, 0}, {3, 0.015}, {5, 0.02}, {20, 0.02}, {50, 0.025}} {
		worst := 0.0
		for network := range 3 {
			list, size := equal(network, tt.endpoints), Size(tt.endpoints)
			before := owners(list, size)
			for gone := range list {
				left := slices.Concat(list[:gone], list[gone+1:])
				worst = max(worst, moved(before, owners(left, size), list[gone].AddrPort))
			}
		}
		t.Logf("%d endpoints, %d slots: %.2f %% at worst", tt.endpoints, Size(tt.endpoints), 100*worst)
		if worst > tt.most {
			t.Errorf("one of %d endpoints leaves: %.2f %% of the slots of the others move, want %.1f %% at most", tt.endpoints, 100*worst, 100*tt.most)
		}
	}
}

// moved returns which part of the slots that were not those of one endpoint changed.
func moved(before, after []netip.AddrPort, gone netip.AddrPort) float64 {
	n, others := 0, 0
	for i := range before {
		if before[i] != gone {
			others++
			if before[i] != after[i] {
				n++
			}
		}
	}
	return float64(n) / float64(others)
}

// A share that grows by a tenth of a weight, as at a slow start, moves little more than that.
func TestDisruptionOfASlowStart(t *testing.T) {
	list := weighted(0, 10, 10, 10, 10, 1)
	size := Size(len(list))
	before := owners(list, size)
	for w := uint16(2); w <= 10; w++ {
		list[4].Weight = w
		after := owners(list, size)
		if part := moved(before, after, list[4].AddrPort); part > 0.05 {
			t.Errorf("weight %d: %.1f %% of the slots of the others move", w, 100*part)
		}
		before = after
	}
}

// The order of endpoints, and what all weights have in common, make no difference.
func TestSameOnEveryHost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Uint16Range(1, 300), 1, 12).Draw(t, "weights")
		factor := rapid.Uint16Range(1, 200).Draw(t, "factor")
		size := rapid.SampledFrom([]int{13, 251, 2039}).Draw(t, "size")
		seed := rapid.Uint64().Draw(t, "seed")
		list := weighted(1, weights...)
		want := owners(list, size)
		other := slices.Clone(list)
		for i := range other {
			other[i].Weight *= factor
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		if !slices.Equal(want, owners(other, size)) {
			t.Fatalf("weights %v times %d in another order give another table", weights, factor)
		}
	})
}

func TestNoEndpointsNoTable(t *testing.T) {
	if got := Fill([]uint32{7}, 13, nil); !slices.Equal(got, []uint32{7}) {
		t.Errorf("table %v of no endpoints, after what was there", got)
	}
}
