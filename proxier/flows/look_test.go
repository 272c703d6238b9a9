package flows

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// One look in place of two is about all that either was, whichever came first.
func TestTwoLooksMergeIntoOne(t *testing.T) {
	at := func(appeared bool, former ...string) map[netip.AddrPort]frontendChange {
		p := frontendChange{appeared: appeared, whole: appeared}
		for _, a := range former {
			p.former = append(p.former, netip.MustParseAddrPort(a))
		}
		p.closed, p.dead = p.former, p.former
		return map[netip.AddrPort]frontendChange{netip.MustParseAddrPort("10.96.0.1:53"): p}
	}
	const a, b = "10.0.0.1:53", "10.0.0.2:53"
	for _, tt := range []struct {
		name           string
		one, two, want look
	}{
		{"all", look{all: true}, look{}, look{all: true}},
		{"addresses", look{changed: at(true, a)}, look{}, look{changed: at(true, a)}},
		{"appeared", look{changed: at(true)}, look{changed: at(false)}, look{changed: at(true)}},
		{"former endpoints", look{changed: at(false, a)}, look{changed: at(false, b)}, look{changed: at(false, a, b)}},
		{"the same endpoint", look{changed: at(false, a)}, look{changed: at(false, a)}, look{changed: at(false, a)}},
		{"times done", look{done: 2}, look{done: 1}, look{done: 1}},
	} {
		for _, order := range [][2]look{{tt.one, tt.two}, {tt.two, tt.one}} {
			got := look{all: order[0].all, done: order[0].done, changed: maps.Clone(order[0].changed)}
			got.merge(&order[1])
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(look{}, frontendChange{}), cmpopts.EquateEmpty(),
				cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.SortSlices(netip.AddrPort.Compare)); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
			}
		}
	}
}
