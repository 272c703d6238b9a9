package proxier

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// After any changes of a node and of services, what was resolved again makes the
// same as if everything had been, and the same health checks.
func TestRebaseResolvesEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Node: randomNode(t)}
		l, k := NewLoop(cfg), &kernel{}
		families := []*family{newFamily(IPv4, k, cfg.Node, &cfg, func() {}), newFamily(IPv6, k, cfg.Node, &cfg, func() {})}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			var o order
			o.services, _ = l.apply([]source.Changes{{Set: randomServices(t)}})
			l.rebase(randomNode(t), &o)
			for _, f := range families {
				f.absorb(o)
				checkState(t, l, f)
			}
		}
	})
}

func checkState(t *rapid.T, l *Loop, f *family) {
	t.Helper()
	want, checks := NewState(f.fam, l.node, nil), newNodeHealths()
	all := newChanges()
	l.tracker.services(func(s *source.Service, _ source.UnitID) {
		all.put(want, s.Key, Resolve(s, nil, l.node, f.fam))
		checks.set(s.Key, Subject{Service: s}, l.node, 0)
	})
	same := cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty()}
	if diff := cmp.Diff(want, f.state, same); diff != "" {
		t.Fatalf("%s (-everything again +rebased):\n%s", f.fam, diff)
	}
	if diff := cmp.Diff(checks.checks, l.nodeHealth.checks); diff != "" {
		t.Fatalf("health checks (-everything again +rebased):\n%s", diff)
	}
}

// rebaseAddrs are shared by nodes, services and endpoints, so that they meet.
var rebaseAddrs = addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::1", "2001:db8::2", "2001:db8::3")

func randomAddrs(t *rapid.T, most int, name string) []netip.Addr {
	list := rapid.SliceOfNDistinct(rapid.SampledFrom(rebaseAddrs), 0, most, rapid.ID).Draw(t, name)
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

func randomNode(t *rapid.T) *Node {
	n := testNode(func(n *Node) { n.Addrs = randomAddrs(t, 5, "addresses of the node") })
	n.NodePortAddrs = lists.Keep(n.Addrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "serves node ports") })
	n.UpAddrs = lists.Keep(n.Addrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "up") })
	n.PrimaryAddrs = lists.Keep(n.UpAddrs, func(netip.Addr) bool { return rapid.Bool().Draw(t, "primary") })
	n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29"), netip.MustParsePrefix("2001:db8::2/128")}
	if rapid.IntRange(0, 9).Draw(t, "settings") == 0 {
		n.Zone, n.Masquerade, n.LocalCIDRs = "b", source.MasqueradeNever, nil
		n.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}
	}
	return n
}

// randomServices are some of five files, each with a service that shares no address with the others.
func randomServices(t *rapid.T) (units []source.Unit) {
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		if rapid.Bool().Draw(t, "unchanged") {
			continue
		}
		u := file(name, fmt.Sprintf("%s 10.96.0.%d:80", name, i))
		s := u.Services[0]
		s.Ports[0].Port = uint16(80 + i)
		s.VIPs = append(s.VIPs, randomAddrs(t, 1, "vips")...)
		for _, a := range randomAddrs(t, 2, "external") {
			if !slices.Contains(s.VIPs, a) {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, a)
			}
		}
		if rapid.Bool().Draw(t, "local") {
			s.ExternalTrafficPolicy, s.HealthCheckNodePort = source.Local, uint16(32000+i)
		}
		s.TrafficDistribution = rapid.SampledFrom([]source.TrafficDistribution{source.Evenly, source.PreferSameNode}).Draw(t, "distribution")
		if rapid.IntRange(0, 2).Draw(t, "ranges") == 0 {
			s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30"), netip.MustParsePrefix("2001:db8::2/127")}
		}
		if rapid.IntRange(0, 2).Draw(t, "all ranges") == 0 {
			s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/31"), netip.MustParsePrefix("2001:db8::2/127")}
		}
		if rapid.Bool().Draw(t, "node port") {
			s.Ports[0].NodePort = uint16(31000 + i)
			s.NodePortAddresses = rapid.SampledFrom([]*source.NodeAddresses{nil, {All: true}, {Primary: true}, {Ranges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")}}}).Draw(t, "where")
		}
		s.Masquerade = rapid.SampledFrom([]source.Masquerading{source.MasqueradeAsSet, source.MasqueradeAuto, source.MasqueradeAll, source.MasqueradeNever}).Draw(t, "masquerade")
		for _, a := range randomAddrs(t, 3, "endpoints") {
			e := testEndpoint(a.String())
			e.Node = rapid.SampledFrom([]string{"", "here", "elsewhere"}).Draw(t, "node")
			s.Endpoints = append(s.Endpoints, e)
		}
		units = append(units, u)
	}
	return units
}

// An address that no service has to do with has none resolved again.
func TestRebaseResolvesLittle(t *testing.T) {
	l := NewLoop(Config{Node: testNode()})
	ranges := file("r", "r 10.96.0.7:80")
	ranges.Services[0].LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	l.apply([]source.Changes{set(checked("a", 0, "10.0.0.1"), checked("b", 0, "10.0.0.2"), file("c", "c 10.96.0.3:80"), ranges)})
	anywhere := checked("d", 0, "10.0.0.4")
	anywhere.Services[0].Endpoints[0].Node = ""
	l.apply([]source.Changes{set(anywhere)})
	for _, tt := range []struct{ added, want string }{
		{"192.0.2.77", "r"}, {"10.0.0.1", "r"}, {"10.0.0.4", "d r"}, {"10.96.0.3", "c r"},
	} {
		o := order{services: map[source.Key]Subject{}}
		l.rebase(testNode(func(n *Node) {
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
		l.rebase(testNode(), &order{services: map[source.Key]Subject{}})
	}
	other := nodeChangeOf(testNode(), testNode(func(n *Node) { n.NodePortAddrs = nil }))
	if other.touches(file("c", "c 10.96.0.3:80").Services[0]) || !other.touches(ranges.Services[0]) {
		t.Error("other node port addresses touch a service without source ranges, or not one that has some")
	}
}
