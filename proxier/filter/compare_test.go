package filter

import (
	"fmt"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// Many members in a difference are put into words only for who asks for them.
func TestChangesAreWrittenWhenAskedFor(t *testing.T) {
	const members = 10_000
	want := layout.Members{Type: layout.SharedSets[0].Type, Entries: map[ipset.Entry]struct{}{}}
	for i := range members {
		a := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		want.Entries[ipset.Entry{Addr: a}] = struct{}{}
	}
	sets := map[string]layout.Members{"SVCP-A": want}
	allocs := testing.AllocsPerRun(1, func() { new(difference).compareSets(nil, sets, false) })
	if allocs > members/10 {
		t.Errorf("a comparison without a reader makes %v allocations for %d members", allocs, members)
	}
	d := &difference{plan: true}
	d.compareSets(nil, sets, false)
	list := d.changes
	if len(list) != members+1 {
		t.Fatalf("%d changes, want %d", len(list), members+1)
	}
	if got, want := fmt.Sprint(list[:3]), "[{add ip set SVCP-A} {add ip set SVCP-A member 10.96.0.0} {add ip set SVCP-A member 10.96.0.1}]"; got != want {
		t.Errorf("changes begin with %s, want %s", got, want)
	}
}
