package filter

import (
	"maps"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/proxier/looks"
)

// A look names everything that it found, as a plan does.
func TestDifferingNamesEverything(t *testing.T) {
	var m mirror
	m.damage.Add(chainObject("nat", "SVCP-SERVICES"))
	m.damage.Add(jumpsObject("filter", "FORWARD"))
	m.damage.Add(setObject("SVCP-VIPS-4"))
	want := []string{"ip set SVCP-VIPS-4", "iptables chain nat SVCP-SERVICES", "iptables jumps of filter FORWARD"}
	if got := m.differing("iptables"); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Two readings confirm what both found, and nothing else.
func TestDamageOfBoth(t *testing.T) {
	a, b := chainObject("nat", "SVCP-A"), chainObject("nat", "SVCP-B")
	in, out := jumpsObject("nat", "INPUT"), jumpsObject("nat", "OUTPUT")
	var first, second looks.Objects[object]
	for _, o := range []object{a, b, in} {
		first.Add(o)
	}
	second.Add(in)
	second.Add(out)
	if got := both(&first, &second); !maps.Equal(got.Some, map[object]bool{in: true}) {
		t.Errorf("got %v", got)
	}
	second.Add(b)
	if got := both(&second, &first); !maps.Equal(got.Some, map[object]bool{b: true, in: true}) {
		t.Errorf("got %v", got)
	}
}
