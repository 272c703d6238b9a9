package maglev

import (
	"math"
	"net/netip"
	"testing"
)

// Connections fall on endpoints by weight: 100,000 of 10 clients, from ports in a row.
func TestConnectionsByWeight(t *testing.T) {
	const connections = 100_000
	list := weighted(0, 1, 2, 7)
	size := Size(len(list))
	table := Fill(nil, size, list)
	for _, first := range []string{"198.51.100.1", "2001:db8::1"} {
		counts := make([]float64, len(list))
		a := netip.MustParseAddr(first)
		for i := range connections {
			if i%10_000 == 0 {
				a = a.Next()
			}
			counts[table[Slot(size, netip.AddrPortFrom(a, uint16(32768+i%10_000)), true)]]++
		}
		for i, e := range list {
			want := connections * float64(e.Weight) / 10
			if off := math.Abs(counts[i]-want) / want; off > 0.02 {
				t.Errorf("%s: weight %d got %.0f of %d connections, %.1f %% off", first, e.Weight, counts[i], connections, 100*off)
			}
		}
	}
}

// Clients by address alone spread too, and a client stays where it is whatever its port.
func TestClientsByAddress(t *testing.T) {
	counts := map[int]int{}
	a := netip.MustParseAddr("10.0.0.0")
	for range 10_000 {
		a = a.Next()
		slot := Slot(13, netip.AddrPortFrom(a, 1), false)
		if other := Slot(13, netip.AddrPortFrom(a, 2), false); other != slot {
			t.Fatalf("%s has slots %d and %d", a, slot, other)
		}
		counts[slot]++
	}
	for slot, n := range counts {
		if n < 600 || n > 940 || slot > 12 {
			t.Errorf("slot %d has %d of 10,000 clients", slot, n)
		}
	}
}
