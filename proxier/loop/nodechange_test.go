package loop

import (
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// After any changes of a node and of services, what was resolved again makes the
// same as if everything had been, and the same health checks.
func TestRebaseResolvesEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Node: policytest.RandomNode(t), Observer: Unobserved{}}
		l, k := New(cfg), &kernel{}
		families := []*family{newFamily(policy.IPv4, k, cfg.Node, &cfg, new(inbox), new(atomic.Uint64)), newFamily(policy.IPv6, k, cfg.Node, &cfg, new(inbox), new(atomic.Uint64))}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			var o order
			o.services, _ = l.grantClaims([]source.Changes{{Set: policytest.RandomServices(t)}})
			l.setNode(policytest.RandomNode(t), &o)
			for _, f := range families {
				f.handleOrder(o)
				checkState(t, l, f)
			}
		}
	})
}

func checkState(t *rapid.T, l *Loop, f *family) {
	t.Helper()
	want, checks := policy.NewState(f.fam, l.catalog.node, nil), newNodeHealths()
	all := policy.NewChanges()
	l.catalog.tracker.Services(func(s *source.Service, _ source.UnitID) {
		all.Put(want, s.Key, policy.Resolve(s, nil, l.catalog.node, f.fam))
		checks.set(s.Key, policy.Subject{Service: s}, l.catalog.node, 0)
	})
	same := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, policy.Target{}), cmpopts.EquateEmpty()}
	if diff := cmp.Diff(want, f.desired.next, same); diff != "" {
		t.Fatalf("%s (-everything again +rebased):\n%s", f.fam, diff)
	}
	if diff := cmp.Diff(checks.checks, l.nodeHealth.checks, same); diff != "" {
		t.Fatalf("health checks (-everything again +rebased):\n%s", diff)
	}
}

// An address that no service has to do with has none resolved again.
func TestRebaseResolvesLittle(t *testing.T) {
	l := New(Config{Node: policytest.Node()})
	ranges := policytest.File("r", "r 10.96.0.7:80")
	ranges.Services[0].LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	l.grantClaims([]source.Changes{policytest.Set(checked("a", 0, "10.0.0.1"), checked("b", 0, "10.0.0.2"), policytest.File("c", "c 10.96.0.3:80"), ranges)})
	anywhere := checked("d", 0, "10.0.0.4")
	anywhere.Services[0].Endpoints[0] = anywhere.Services[0].Endpoints[0].With(source.Extras{})
	l.grantClaims([]source.Changes{policytest.Set(anywhere)})
	for _, tt := range []struct{ added, want string }{
		{"192.0.2.77", "r"}, {"10.0.0.1", "r"}, {"10.0.0.4", "d r"}, {"10.96.0.3", "c r"},
	} {
		o := order{services: map[source.Key]policy.Subject{}}
		l.setNode(policytest.Node(func(n *policy.Node) {
			n.Addrs = append(n.Addrs, netip.MustParseAddr(tt.added))
			slices.SortFunc(n.Addrs, netip.Addr.Compare)
		}), &o)
		var names []string
		for key := range o.services {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("%s came: %s are resolved again, want %s", tt.added, got, tt.want)
		}
		l.setNode(policytest.Node(), &order{services: map[source.Key]policy.Subject{}})
	}
	other := touchedBy(policytest.Node(), policytest.Node(func(n *policy.Node) { n.NodePortAddrs = nil }))
	if other(policytest.File("c", "c 10.96.0.3:80").Services[0]) || !other(ranges.Services[0]) {
		t.Error("other node port addresses touch a service without source ranges, or not one that has some")
	}
}

// An address of lo is for routers, one of a link is not; where it moves, the service is looked at again.
func TestAnnouncementsOfLoopback(t *testing.T) {
	onLo := policytest.Node(func(n *policy.Node) { n.LoopbackAddrs = policytest.Addrs("192.0.2.1") })
	svc := policytest.Service(policytest.Announce(source.BGP|source.L2), policytest.Balanced("192.0.2.1"), policytest.Endpoints("10.0.0.1"))
	for node, want := range map[*policy.Node]string{onLo: "192.0.2.1 192.0.2.1/l2", policytest.Node(): "192.0.2.1=own_address 192.0.2.1/l2"} {
		if got := policytest.ShowAnnounced(policy.Resolve(svc, nil, node, policy.IPv4).Announced); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	change := touchedBy(onLo, policytest.Node())
	if !change(svc) || change(policytest.Service(policytest.External)) {
		t.Errorf("it touches others, or not this one")
	}
}
