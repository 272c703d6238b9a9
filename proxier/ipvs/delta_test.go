package ipvs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// The set of bound addresses changes by what it gains and loses, no more: an
// address stays in it while servers drain, and is there when its service comes back.
func TestBoundAddrsChangeOnce(t *testing.T) {
	a := netip.MustParseAddr("10.96.0.10")
	b, bound := holdings{members: map[netip.Addr]struct{}{}}, map[netip.Addr]struct{}{}
	gained, lost := policy.SetDelta[netip.Addr]{Gained: []netip.Addr{a}}, policy.SetDelta[netip.Addr]{Lost: []netip.Addr{a}}
	for _, step := range []struct {
		what   string
		change policy.SetDelta[netip.Addr]
		drains int // servers at a, after the change
		freed  []netip.Addr
		bind   []netip.Addr
		want   policy.SetDelta[netip.Addr]
	}{
		{"comes", gained, 0, nil, []netip.Addr{a}, gained},
		{"goes, and drains", lost, 1, nil, nil, policy.SetDelta[netip.Addr]{}},
		{"comes back", gained, 0, nil, nil, policy.SetDelta[netip.Addr]{}},
		{"goes, and drains, again", lost, 2, nil, nil, policy.SetDelta[netip.Addr]{}},
		{"is drained", policy.SetDelta[netip.Addr]{}, 0, []netip.Addr{a, a}, nil, lost},
		{"comes again", gained, 0, nil, []netip.Addr{a}, gained},
		{"goes at once", lost, 0, []netip.Addr{a}, nil, lost},
	} {
		st := &policy.State{BoundAddrs: map[netip.Addr]int{a: len(step.change.Gained)}}
		b.orphans = map[netip.Addr]int{a: step.drains}
		bind, shown := b.addrChanges(st, &policy.Delta{BoundAddrs: step.change}, bound, step.freed)
		same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
		if diff := cmp.Diff(step.bind, bind, same); diff != "" {
			t.Errorf("%s: to bind (-want +got):\n%s", step.what, diff)
		}
		if diff := cmp.Diff(step.want, shown.BoundAddrs, same); diff != "" {
			t.Errorf("%s: members (-want +got):\n%s", step.what, diff)
		}
		for _, a := range bind {
			bound[a] = struct{}{}
		}
		for _, a := range shown.BoundAddrs.Lost {
			delete(bound, a)
		}
	}
}
