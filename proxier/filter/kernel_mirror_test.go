package filter

import (
	"maps"
	"slices"
	"testing"
)

// A look names everything that it found, as a plan does.
func TestDiffering(t *testing.T) {
	var m mirror
	note(&m.damage.chains, chainID{"nat", "SVCP-SERVICES"})
	note(&m.damage.jumps, chainID{"filter", "FORWARD"})
	note(&m.damage.sets, "SVCP-VIPS-4")
	want := []string{"ip set SVCP-VIPS-4", "iptables chain nat SVCP-SERVICES", "iptables jumps of filter FORWARD"}
	if got := m.differing("iptables"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Two readings confirm what both found, and nothing else.
func TestDamageOfBoth(t *testing.T) {
	a, b, in, out := chainID{"nat", "SVCP-A"}, chainID{"nat", "SVCP-B"}, chainID{"nat", "INPUT"}, chainID{"nat", "OUTPUT"}
	var first, second damage
	for _, id := range []chainID{a, b} {
		note(&first.chains, id)
	}
	note(&first.jumps, in)
	for _, id := range []chainID{in, out} {
		note(&second.jumps, id)
	}
	if both := first.and(&second); len(both.chains) > 0 || !maps.Equal(both.jumps, map[chainID]bool{in: true}) {
		t.Errorf("got %v", both)
	}
	note(&second.chains, b)
	if both := second.and(&first); !maps.Equal(both.chains, map[chainID]bool{b: true}) || !maps.Equal(both.jumps, map[chainID]bool{in: true}) {
		t.Errorf("got %v", both)
	}
}
