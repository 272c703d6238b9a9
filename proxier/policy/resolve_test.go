package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

func TestResolveRoutes(t *testing.T) {
	localSources := func(n *policy.Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }
	type edits = []func(*source.Service)
	masquerade := func(m source.Masquerading) func(*source.Service) {
		return func(s *source.Service) { s.Masquerade = m }
	}
	tests := []struct {
		name           string
		svc            edits
		node           *policy.Node
		outside, local string
	}{
		{"all endpoints, in order", edits{policytest.Endpoints("10.0.0.2", "10.0.0.1")}, policytest.Node(),
			"10.0.0.1:8080 10.0.0.2:8080 masquerade everyone", ""},
		{"no endpoint", nil, policytest.Node(), "reject", ""},
		{"not ready", edits{policytest.Endpoints("10.0.0.1 notready")}, policytest.Node(), "reject", ""},
		{"not ready, though serving", edits{policytest.Endpoints("10.0.0.1"), func(s *source.Service) { s.Endpoints[0].Ready = false }}, policytest.Node(), "reject", ""},
		{"not ready but published", edits{policytest.Endpoints("10.0.0.1 notready"), func(s *source.Service) { s.PublishNotReady = true }}, policytest.Node(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"ready before terminating", edits{policytest.Endpoints("10.0.0.1", "10.0.0.2 terminating")}, policytest.Node(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"only terminating", edits{policytest.Endpoints("10.0.0.1 notready", "10.0.0.2 terminating")}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"only terminating, one of weight 0", edits{policytest.Endpoints("10.0.0.1 terminating weight=0", "10.0.0.2 terminating")}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"weights", edits{policytest.Endpoints("10.0.0.1 weight=5", "10.0.0.2 weight=0", "10.0.0.3")}, policytest.Node(),
			"10.0.0.1:8080*5 10.0.0.3:8080 masquerade everyone", ""},
		{"all weights 0", edits{policytest.Endpoints("10.0.0.1 weight=0")}, policytest.Node(), "reject", ""},
		{"endpoint of the other family", edits{policytest.Endpoints("2001:db8::2")}, policytest.Node(), "reject", ""},

		{"masquerade all", edits{policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources, func(n *policy.Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade never", edits{policytest.Endpoints("10.0.0.1")}, policytest.Node(func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade no one", ""},
		{"masquerade all of the service", edits{masquerade(source.MasqueradeAll), policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources, func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade auto of the service", edits{masquerade(source.MasqueradeAuto), policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources, func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade never of the service", edits{masquerade(source.MasqueradeNever), policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources, func(n *policy.Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade no one", ""},
		{"external, masquerade never", edits{policytest.External, policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources, func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external, masquerade never of the service", edits{policytest.External, masquerade(source.MasqueradeNever), policytest.Endpoints("10.0.0.1")}, policytest.Node(),
			"10.0.0.1:8080 masquerade host processes", ""},
		{"external, masquerade all of the service", edits{policytest.External, masquerade(source.MasqueradeAll), policytest.Endpoints("10.0.0.1")}, policytest.Node(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade auto with local sources", edits{policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources),
			"10.0.0.1:8080 masquerade non-local", ""},

		{"direct", edits{policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "10.0.0.1:80 masquerade everyone", "10.0.0.1:80 masquerade host processes"},
		{"direct, with local sources", edits{policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources), "10.0.0.1:80 masquerade non-local", "10.0.0.1:80 masquerade host processes"},
		{"direct, masquerade never", edits{policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:80 masquerade no one", "10.0.0.1:80 masquerade host processes"},
		{"direct, external", edits{policytest.External, policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "10.0.0.1:80 masquerade everyone", "10.0.0.1:80 masquerade host processes"},
		{"direct, external local", edits{policytest.ExternalLocal, policytest.Direct, policytest.Endpoints("10.0.0.1", "10.0.0.2 @here")}, policytest.Node(),
			"10.0.0.2:80 masquerade no one", "10.0.0.1:80 10.0.0.2:80 masquerade host processes"},
		{"direct, external local elsewhere", edits{policytest.ExternalLocal, policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "drop", "10.0.0.1:80 masquerade host processes"},
		{"direct, internal local elsewhere", edits{policytest.InternalLocal, policytest.Direct, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "drop", ""},
		{"direct, no endpoint", edits{policytest.Direct}, policytest.Node(), "reject", ""},

		{"masquerade auto in a cluster without local sources", edits{policytest.InCluster, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "10.0.0.1:8080 masquerade no one", ""},
		{"masquerade auto in a cluster, local sources of the other family", edits{policytest.InCluster, policytest.Endpoints("10.0.0.1")},
			policytest.Node(func(n *policy.Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00::/64")} }), "10.0.0.1:8080 masquerade no one", ""},
		{"masquerade auto in a cluster with local sources", edits{policytest.InCluster, policytest.Endpoints("10.0.0.1")}, policytest.Node(localSources), "10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade auto in a cluster with local interfaces", edits{policytest.InCluster, policytest.Endpoints("10.0.0.1")},
			policytest.Node(func(n *policy.Node) { n.LocalInterfaces = []string{"cni0"} }), "10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade all in a cluster", edits{policytest.InCluster, policytest.Endpoints("10.0.0.1")}, policytest.Node(func(n *policy.Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external in a cluster", edits{policytest.InCluster, policytest.External, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "10.0.0.1:8080 masquerade everyone", ""},

		{"internal local", edits{policytest.InternalLocal, policytest.Endpoints("10.0.0.1", "10.0.0.2 @here")}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"internal local by address", edits{policytest.InternalLocal, policytest.Endpoints("10.0.0.1", "192.0.2.1")}, policytest.Node(),
			"192.0.2.1:8080 masquerade everyone", ""},
		{"internal local, address of this host but another node", edits{policytest.InternalLocal, policytest.Endpoints("192.0.2.1 @there")}, policytest.Node(), "drop", ""},
		{"internal local, none here", edits{policytest.InternalLocal, policytest.Endpoints("10.0.0.1")}, policytest.Node(), "drop", ""},
		{"internal local, none at all", edits{policytest.InternalLocal}, policytest.Node(), "reject", ""},
		{"local fallback is decided on its own", edits{policytest.InternalLocal, policytest.Endpoints("10.0.0.1", "10.0.0.2 @here terminating")}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},

		{"external", edits{policytest.External, policytest.Endpoints("10.0.0.1")}, policytest.Node(func(n *policy.Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external local", edits{policytest.ExternalLocal, policytest.Endpoints("10.0.0.1", "10.0.0.2 @here")}, policytest.Node(),
			"10.0.0.2:8080 masquerade no one", "10.0.0.1:8080 10.0.0.2:8080 masquerade everyone"},
		{"external local with local sources", edits{policytest.ExternalLocal, policytest.Endpoints("10.0.0.1", "10.0.0.2 @here")}, policytest.Node(localSources),
			"10.0.0.2:8080 masquerade no one", "10.0.0.1:8080 10.0.0.2:8080 masquerade host processes"},
		{"external local, none here", edits{policytest.ExternalLocal, policytest.Endpoints("10.0.0.1")}, policytest.Node(),
			"drop", "10.0.0.1:8080 masquerade everyone"},
		{"external local, none at all", edits{policytest.ExternalLocal}, policytest.Node(), "reject", ""},

		{"same zone", edits{policytest.Endpoints("10.0.0.1 zone=b", "10.0.0.2 zone=a", "10.0.0.3"), policytest.Distribution(source.PreferSameZone)}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"same zone, none near", edits{policytest.Endpoints("10.0.0.1 zone=b", "10.0.0.2 zone=a notready"), policytest.Distribution(source.PreferSameZone)}, policytest.Node(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"same zone, node without zone", edits{policytest.Endpoints("10.0.0.1", "10.0.0.2 zone=b"), policytest.Distribution(source.PreferSameZone)}, policytest.Node(func(n *policy.Node) { n.Zone = "" }),
			"10.0.0.1:8080 10.0.0.2:8080 masquerade everyone", ""},
		{"same node", edits{policytest.Endpoints("10.0.0.1 zone=a", "10.0.0.2 @here"), policytest.Distribution(source.PreferSameNode)}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"same node falls back to zone", edits{policytest.Endpoints("10.0.0.1 zone=a", "10.0.0.2"), policytest.Distribution(source.PreferSameNode)}, policytest.Node(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"distribution does not limit local", edits{policytest.InternalLocal, policytest.Endpoints("10.0.0.1 zone=a", "10.0.0.2 zone=b @here"), policytest.Distribution(source.PreferSameZone)}, policytest.Node(),
			"10.0.0.2:8080 masquerade everyone", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := policy.Resolve(policytest.Service(tt.svc...), nil, tt.node, policy.IPv4)
			f := r.Frontends[0]
			if tt.local == "" {
				tt.local = tt.outside
			}
			if got := policytest.Show(f.Outside); got != tt.outside {
				t.Errorf("outside\n got: %s\nwant: %s", got, tt.outside)
			}
			if got := policytest.Show(f.FromLocal); got != tt.local {
				t.Errorf("local\n got: %s\nwant: %s", got, tt.local)
			}
			if f.Split() != (tt.local != tt.outside) {
				t.Errorf("Split() = %v", f.Split())
			}
		})
	}
}

func TestResolveFrontends(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1", "10.0.0.2 weight=0", "fd00::1 notready"))
	svc.VIPs = policytest.Addrs("10.96.0.10", "fd00:96::10")
	svc.LoadBalancerIPs = policytest.Addrs("198.51.100.1")
	svc.Ports = []source.Port{
		{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
		{Name: "dns", Protocol: source.UDP, Port: 53, TargetPort: 53},
	}
	svc.Endpoints[0].Ports = map[string]uint16{"dns": 5353}
	got := map[policy.Family]string{}
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		r := policy.Resolve(svc, nil, policytest.Node(), fam)
		var lines []string
		for _, f := range r.Frontends {
			lines = append(lines, fmt.Sprintf("%s %s:%d/%s %s %s kept %v", f.Key.Kind, f.Key.Addr, f.Key.Port, f.Key.Protocol, f.ServicePort, policytest.Show(f.Outside), f.Outside.Pool.Kept))
		}
		if len(r.Pools) != 2 {
			t.Errorf("%s: %d pools, want one a port", fam, len(r.Pools))
		}
		got[fam] = strings.Join(lines, "\n")
	}
	want := map[policy.Family]string{
		policy.IPv4: `node-port 0.0.0.0:30080/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
vip 10.96.0.10:80/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
vip 10.96.0.10:53/udp default/web:dns 10.0.0.1:5353 masquerade everyone kept [10.0.0.2:53]
load-balancer 198.51.100.1:80/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
load-balancer 198.51.100.1:53/udp default/web:dns 10.0.0.1:5353 masquerade everyone kept [10.0.0.2:53]`,
		policy.IPv6: `node-port :::30080/tcp default/web:http reject kept []
vip fd00:96::10:80/tcp default/web:http reject kept []
vip fd00:96::10:53/udp default/web:dns reject kept []`,
	}
	for fam, w := range want {
		if got[fam] != w {
			t.Errorf("%s\n got: %s\nwant: %s", fam, got[fam], w)
		}
	}
}

func TestResolveFamilies(t *testing.T) {
	nodePort := func(s *source.Service) { s.VIPs = nil; s.Ports[0].NodePort = 30080 }
	tests := []struct {
		name   string
		svc    *source.Service
		v4, v6 bool
	}{
		{"one family", policytest.Service(), true, false},
		{"node port beside an address follows it", policytest.Service(func(s *source.Service) { s.Ports[0].NodePort = 30080 }), true, false},
		{"node port only", policytest.Service(nodePort), true, true},
		{"neither", policytest.Service(func(s *source.Service) { s.VIPs = nil }), false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := policy.Resolve(tt.svc, nil, policytest.Node(), policy.IPv4) != nil, policy.Resolve(tt.svc, nil, policytest.Node(), policy.IPv6) != nil
			if v4 != tt.v4 || v6 != tt.v6 {
				t.Errorf("served: ipv4 %v, ipv6 %v; want %v, %v", v4, v6, tt.v4, tt.v6)
			}
		})
	}
}

func TestResolveSourceRanges(t *testing.T) {
	const pods = "10.244.1.0/24"
	tests := []struct{ name, local, ranges, want string }{
		{"merged", pods, "10.1.0.0/16 10.1.2.0/24 10.0.0.0/24", "[10.0.0.0/24 10.1.0.0/16]"},
		{"node inside", pods, "192.0.2.0/24", "[10.244.1.1/32 192.0.2.0/24 198.51.100.1/32]"},
		{"node inside, among local sources", pods + " 192.0.2.0/24", "192.0.2.0/24", "[10.244.1.1/32 192.0.2.0/24 198.51.100.1/32]"},
		{"other family only", pods, "2001:db8::/32", "[]"},
		{"a bridge of pods inside", pods, "10.244.0.0/16", "[10.244.0.0/16]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := policytest.Service(policytest.Endpoints("10.0.0.1"))
			svc.VIPs, svc.LoadBalancerIPs = nil, policytest.Addrs("198.51.100.1")
			for _, p := range strings.Fields(tt.ranges) {
				svc.LoadBalancerSourceRanges = append(svc.LoadBalancerSourceRanges, netip.MustParsePrefix(p))
			}
			node := policytest.Node(func(n *policy.Node) {
				n.Addrs = policytest.Addrs("10.244.1.1", "192.0.2.1", "2001:db8::1")
				for _, p := range strings.Fields(tt.local) {
					n.LocalCIDRs = append(n.LocalCIDRs, netip.MustParsePrefix(p))
				}
			})
			f := policy.Resolve(svc, nil, node, policy.IPv4).Frontends[0]
			if got := fmt.Sprint(f.SourceRanges); !f.Restricted || got != tt.want {
				t.Errorf("restricted %v to %s, want %s", f.Restricted, got, tt.want)
			}
		})
	}
}

// An address among local sources is the node's own where it serves node ports, those of the service.
func TestRangesOfAddressesOfNodePorts(t *testing.T) {
	node := policytest.Node(func(n *policy.Node) {
		n.Addrs = policytest.Addrs("10.244.1.1", "192.0.2.1")
		n.UpAddrs, n.NodePortAddrs, n.LocalCIDRs = n.Addrs, policytest.Addrs("192.0.2.1"), policytest.Prefixes("10.244.1.0/24")
	})
	for _, tt := range []struct{ at, want string }{
		{"", "[10.244.0.0/16]"},
		{"10.244.0.0/16", "[10.244.0.0/16 192.0.2.1/32]"},
	} {
		svc := policytest.Service(policytest.Endpoints("10.0.0.1"))
		svc.VIPs, svc.Ports[0].NodePort, svc.SourceRanges = nil, 30080, policytest.Prefixes("10.244.0.0/16")
		if tt.at != "" {
			svc.NodePortAddresses = source.SelectAddresses([]string{tt.at})
		}
		f := policy.Resolve(svc, nil, node, policy.IPv4).Frontends[0]
		if got := fmt.Sprint(f.SourceRanges); got != tt.want {
			t.Errorf("node ports on %q: restricted to %s, want %s", tt.at, got, tt.want)
		}
		if by := policy.KeptOutBy(svc, node, f, netip.MustParseAddr("192.0.2.1")); (by == "") != (tt.at != "") {
			t.Errorf("node ports on %q: the node is kept out by %q", tt.at, by)
		}
	}
}

// source_ranges are of every kind of frontend, and of load-balancer addresses with their own ranges.
func TestResolveSourceRangesOfAll(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1"))
	svc.VIPs, svc.ExternalIPs, svc.LoadBalancerIPs = policytest.Addrs("10.96.0.1"), policytest.Addrs("198.51.100.1"), policytest.Addrs("198.51.100.2")
	svc.Ports[0].NodePort = 30080
	for _, tt := range []struct{ all, balancers, want string }{
		{"10.1.0.0/16 2001:db8::/32", "", "vip [10.1.0.0/16] external [10.1.0.0/16] load-balancer [10.1.0.0/16] node-port [10.1.0.0/16]"},
		{"10.1.0.0/16 10.3.0.0/24", "10.1.2.0/24 10.1.4.0/24 10.3.0.0/16 10.4.0.0/16",
			"vip [10.1.0.0/16 10.3.0.0/24] external [10.1.0.0/16 10.3.0.0/24] load-balancer [10.1.2.0/24 10.1.4.0/24 10.3.0.0/24] node-port [10.1.0.0/16 10.3.0.0/24]"},
		{"2001:db8::/32", "10.0.0.0/8", "vip [] external [] load-balancer [] node-port []"},
		{"192.0.2.0/25", "192.0.0.0/16", "vip [10.96.0.1/32 192.0.2.0/25] external [192.0.2.0/25 198.51.100.1/32]" +
			" load-balancer [192.0.2.0/25 198.51.100.2/32] node-port [127.0.0.0/8 192.0.2.0/25]"},
		{"192.0.2.0/25", "10.0.0.0/8", "vip [10.96.0.1/32 192.0.2.0/25] external [192.0.2.0/25 198.51.100.1/32] load-balancer [] node-port [127.0.0.0/8 192.0.2.0/25]"},
	} {
		svc.SourceRanges, svc.LoadBalancerSourceRanges = policytest.Prefixes(tt.all), policytest.Prefixes(tt.balancers)
		node := policytest.Node(func(n *policy.Node) {
			n.Addrs, n.LocalhostNodePorts = policytest.Addrs("192.0.2.1", "2001:db8::1"), true
		})
		got := map[policy.Kind]string{}
		for _, f := range policy.Resolve(svc, nil, node, policy.IPv4).Frontends {
			got[f.Key.Kind] = fmt.Sprint(f.Key.Kind, " ", f.SourceRanges)
			for _, a := range policytest.Addrs("10.1.2.1", "10.3.1.1", "192.0.2.1", "198.51.100.2") {
				if by := policy.KeptOutBy(svc, node, f, a); (by == "") != f.Admits(a) {
					t.Errorf("%s + %s: %s of %v kept out by %q, admitted %v", tt.all, tt.balancers, a, f.Key, by, f.Admits(a))
				}
			}
		}
		if text := strings.Join([]string{got[policy.VIP], got[policy.External], got[policy.LoadBalancer], got[policy.NodePort]}, " "); text != tt.want {
			t.Errorf("%s + %s:\n%s\nwant\n%s", tt.all, tt.balancers, text, tt.want)
		}
	}
}

// What two lists have in common is what is in both, whatever lies in what.
func TestInBothOfTwoLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) netip.Prefix {
			bits := rapid.IntRange(24, 32).Draw(t, "bits")
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 63).Draw(t, "last"))})
			return netip.PrefixFrom(a, bits).Masked()
		})
		list := func(name string) []netip.Prefix {
			return policy.WithoutContained(rapid.SliceOfN(draw, 0, 6).Draw(t, name))
		}
		a, b := list("a"), list("b")
		both := policy.InBoth(a, b)
		for i := range 256 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if policy.InAny(both, addr) != (policy.InAny(a, addr) && policy.InAny(b, addr)) {
				t.Fatalf("%s: %v of %v and %v", addr, both, a, b)
			}
		}
		if again := policy.WithoutContained(slices.Clone(both)); !slices.Equal(again, both) {
			t.Fatalf("%v is not sorted, or overlaps", both)
		}
	})
}

// Node ports are on the addresses that the service selects of those that are up.
func TestResolveNodePortAddresses(t *testing.T) {
	node := policytest.Node(func(n *policy.Node) {
		n.Addrs = policytest.Addrs("192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1")
		n.UpAddrs, n.PrimaryAddrs = policytest.Addrs("192.0.2.1", "198.51.100.1", "2001:db8::1"), policytest.Addrs("198.51.100.1", "2001:db8::1")
	})
	localhost := *node
	localhost.LocalhostNodePorts = true
	for _, tt := range []struct {
		list      []string
		node      *policy.Node
		four, six string
	}{
		{nil, node, "[192.0.2.1]", "[]"},
		{[]string{"all"}, node, "[192.0.2.1 198.51.100.1]", "[2001:db8::1]"},
		{[]string{"primary"}, node, "[198.51.100.1]", "[2001:db8::1]"},
		{[]string{"192.0.2.0/24"}, node, "[192.0.2.1]", "none"},
		{[]string{"primary", "192.0.2.1/32"}, node, "[192.0.2.1 198.51.100.1]", "[2001:db8::1]"},
		{[]string{}, node, "none", "none"},
		{[]string{}, &localhost, "[127.0.0.1]", "none"},
		{[]string{"primary"}, &localhost, "[198.51.100.1 127.0.0.1]", "[2001:db8::1]"},
	} {
		svc := policytest.Service(policytest.Endpoints("10.0.0.1", "fd00::1"))
		svc.VIPs, svc.Ports[0].NodePort = nil, 30080
		if tt.list != nil {
			svc.NodePortAddresses = source.SelectAddresses(tt.list)
		}
		for fam, want := range map[policy.Family]string{policy.IPv4: tt.four, policy.IPv6: tt.six} {
			got, host := "none", tt.node.Host(fam)
			if list := policy.Resolve(svc, nil, tt.node, fam).Frontends; len(list) > 0 {
				got = fmt.Sprint(host.Addrs(list[0]))
			}
			if got != want {
				t.Errorf("%q, %s: node port on %s, want %s", tt.list, fam, got, want)
			}
		}
	}
}

// Other ports of an address that routers send here are refused, unless an interface of this host carries it.
func TestResolveRefusesAnnounced(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1"), policytest.Balanced("203.0.113.1", "192.0.2.1", "2001:db8::9"))
	svc.ExternalIPs = policytest.Addrs("203.0.113.1", "203.0.113.2")
	for means, want := range map[source.Means]string{
		0: "10.96.0.10", source.L2: "10.96.0.10", source.BGP: "10.96.0.10 203.0.113.1 203.0.113.2",
	} {
		svc.Announce = means
		if got := policy.Resolve(svc, nil, policytest.Node(), policy.IPv4).RefusedAddrs; !slices.Equal(got, policytest.Addrs(strings.Fields(want)...)) {
			t.Errorf("announced by %q: %v, want %s", means, got, want)
		}
	}
}

func TestResolveShared(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.1", "10.0.0.2 @here"))
	svc.VIPs = policytest.Addrs("10.96.0.10", "192.0.2.1")
	svc.ExternalIPs = policytest.Addrs("203.0.113.1", "10.96.9.9")
	svc.ExternalTrafficPolicy = source.Local
	node := policytest.Node(func(n *policy.Node) { n.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} })
	r := policy.Resolve(svc, nil, node, policy.IPv4)
	if want := policytest.Addrs("10.96.0.10"); !slices.Equal(r.RefusedAddrs, want) {
		t.Errorf("RefusedVIPs %v, want %v: not the host's own address", r.RefusedAddrs, want)
	}
	want := []policy.Hairpin{policy.NewHairpin(netip.MustParseAddrPort("10.0.0.2:8080"), source.TCP)}
	if got := hairpins(r); !slices.Equal(got, want) {
		t.Errorf("Hairpins %v, want %v: the targets of routes that do not masquerade everyone", got, want)
	}
	if len(r.Warnings) != 1 {
		t.Errorf("Warnings %q, want one about 192.0.2.1", r.Warnings)
	}
}

// Ports that lead to the same port of an endpoint have pools of their own; that it may reach
// itself is said once. Another protocol is another thing.
func TestHairpinsAreDistinct(t *testing.T) {
	svc := policytest.Service(policytest.Endpoints("10.0.0.2", "10.0.0.1"), func(s *source.Service) {
		s.Masquerade = source.MasqueradeNever
		s.Ports = []source.Port{
			{Name: "a", Protocol: source.TCP, Port: 80, TargetPort: 8080}, {Name: "b", Protocol: source.TCP, Port: 81, TargetPort: 8080},
			{Name: "c", Protocol: source.UDP, Port: 80, TargetPort: 8080},
		}
	})
	var want []policy.Hairpin
	for _, a := range []string{"10.0.0.1:8080", "10.0.0.2:8080"} {
		for _, protocol := range []source.Protocol{source.TCP, source.UDP} {
			want = append(want, policy.NewHairpin(netip.MustParseAddrPort(a), protocol))
		}
	}
	if got := hairpins(policy.Resolve(svc, nil, policytest.Node(), policy.IPv4)); !slices.Equal(got, want) {
		t.Errorf("got %v, want each once: %v", got, want)
	}
}

// hairpins returns what a State has of a service.
func hairpins(r *policy.Resolved) []policy.Hairpin {
	ch := policy.NewChanges()
	ch.Put(policy.EmptyState(policy.IPv4, policytest.Node()), r.Key, r)
	return ch.Delta().Hairpins.Gained
}

// An endpoint that answers itself does not reach itself: only what rules balance may do so.
func TestHairpinsOfAnsweringEndpoints(t *testing.T) {
	for _, tt := range []struct {
		node *policy.Node
		want int
	}{{policytest.Node(), 0}, {policytest.Node(func(n *policy.Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }), 2}} {
		r := policy.Resolve(policytest.Service(policytest.Direct, policytest.Endpoints("10.0.0.1", "10.0.0.2")), nil, tt.node, policy.IPv4)
		if got := hairpins(r); len(got) != tt.want {
			t.Errorf("local sources %v: hairpins %v, want %d", tt.node.LocalCIDRs, got, tt.want)
		}
	}
}
