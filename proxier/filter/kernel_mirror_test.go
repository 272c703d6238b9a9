package filter

import (
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
