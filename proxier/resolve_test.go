package proxier

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"svcproxy.dev/svcproxy/source"
)

// testNode owns 192.0.2.1 and 2001:db8::1, in zone "a".
func testNode(edit ...func(*Node)) *Node {
	n := &Node{
		Name: "here", Zone: "a", MarkBit: 14,
		Addrs:         []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		NodePortAddrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}
	for _, f := range edit {
		f(n)
	}
	return n
}

// testService is default/web, 10.96.0.10:80/tcp, without endpoints.
func testService(edit ...func(*source.Service)) *source.Service {
	s := &source.Service{
		Key:   source.Key{Namespace: "default", Name: "web"},
		VIPs:  addrs("10.96.0.10"),
		Ports: []source.Port{{Protocol: source.TCP, Port: 80, TargetPort: 8080}},
	}
	for _, f := range edit {
		f(s)
	}
	return s
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// endpoints parses "10.0.0.1", followed by any of: @node, zone=z, weight=n, notready, terminating, gone.
func testEndpoints(list ...string) func(*source.Service) {
	return func(s *source.Service) {
		for _, text := range list {
			s.Endpoints = append(s.Endpoints, testEndpoint(text))
		}
	}
}

func testEndpoint(text string) source.Endpoint {
	words := strings.Fields(text)
	e := source.Endpoint{Addr: netip.MustParseAddr(words[0]), Weight: 1, Ready: true, Serving: true}
	for _, w := range words[1:] {
		switch {
		case w[0] == '@':
			e.Node = w[1:]
		case w == "notready":
			e.Ready, e.Serving = false, false
		case w == "terminating":
			e.Ready, e.Terminating = false, true
		case strings.HasPrefix(w, "zone="):
			e.Zone = w[5:]
		case w == "disabled":
			e.Disabled = true
		case strings.HasPrefix(w, "tier="):
			fmt.Sscanf(w, "tier=%d", &e.Tier)
		default:
			fmt.Sscanf(w, "weight=%d", &e.Weight)
		}
	}
	return e
}

func external(s *source.Service) {
	s.VIPs, s.ExternalIPs = nil, addrs("203.0.113.1")
}

func direct(s *source.Service) {
	s.Forward.Method, s.Ports[0].TargetPort = source.ForwardDirect, s.Ports[0].Port
}

func externalLocal(s *source.Service) { external(s); s.ExternalTrafficPolicy = source.Local }
func internalLocal(s *source.Service) { s.InternalTrafficPolicy = source.Local }

func show(l Route) string {
	if l.Action != Balance {
		return l.Action.String()
	}
	var t []string
	for _, x := range l.Pool.Targets {
		s := x.AddrPort.String()
		if x.Weight != 1 {
			s += fmt.Sprintf("*%d", x.Weight)
		}
		t = append(t, s)
	}
	return fmt.Sprintf("%s masquerade %s", strings.Join(t, " "), l.Masquerade)
}

func TestResolveRoutes(t *testing.T) {
	localSources := func(n *Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }
	type edits = []func(*source.Service)
	masquerade := func(m source.Masquerading) func(*source.Service) {
		return func(s *source.Service) { s.Masquerade = m }
	}
	tests := []struct {
		name           string
		svc            edits
		node           *Node
		outside, local string
	}{
		{"all endpoints, in order", edits{testEndpoints("10.0.0.2", "10.0.0.1")}, testNode(),
			"10.0.0.1:8080 10.0.0.2:8080 masquerade everyone", ""},
		{"no endpoint", nil, testNode(), "reject", ""},
		{"not ready", edits{testEndpoints("10.0.0.1 notready")}, testNode(), "reject", ""},
		{"not ready, though serving", edits{testEndpoints("10.0.0.1"), func(s *source.Service) { s.Endpoints[0].Ready = false }}, testNode(), "reject", ""},
		{"not ready but published", edits{testEndpoints("10.0.0.1 notready"), func(s *source.Service) { s.PublishNotReady = true }}, testNode(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"ready before terminating", edits{testEndpoints("10.0.0.1", "10.0.0.2 terminating")}, testNode(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"only terminating", edits{testEndpoints("10.0.0.1 notready", "10.0.0.2 terminating")}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"only terminating, one of weight 0", edits{testEndpoints("10.0.0.1 terminating weight=0", "10.0.0.2 terminating")}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"weights", edits{testEndpoints("10.0.0.1 weight=5", "10.0.0.2 weight=0", "10.0.0.3")}, testNode(),
			"10.0.0.1:8080*5 10.0.0.3:8080 masquerade everyone", ""},
		{"all weights 0", edits{testEndpoints("10.0.0.1 weight=0")}, testNode(), "reject", ""},
		{"endpoint of the other family", edits{testEndpoints("2001:db8::2")}, testNode(), "reject", ""},

		{"masquerade all", edits{testEndpoints("10.0.0.1")}, testNode(localSources, func(n *Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade never", edits{testEndpoints("10.0.0.1")}, testNode(func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade no one", ""},
		{"masquerade all of the service", edits{masquerade(source.MasqueradeAll), testEndpoints("10.0.0.1")}, testNode(localSources, func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade auto of the service", edits{masquerade(source.MasqueradeAuto), testEndpoints("10.0.0.1")}, testNode(localSources, func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade never of the service", edits{masquerade(source.MasqueradeNever), testEndpoints("10.0.0.1")}, testNode(localSources, func(n *Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade no one", ""},
		{"external, masquerade never", edits{external, testEndpoints("10.0.0.1")}, testNode(localSources, func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external, masquerade never of the service", edits{external, masquerade(source.MasqueradeNever), testEndpoints("10.0.0.1")}, testNode(),
			"10.0.0.1:8080 masquerade host processes", ""},
		{"external, masquerade all of the service", edits{external, masquerade(source.MasqueradeAll), testEndpoints("10.0.0.1")}, testNode(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"masquerade auto with local sources", edits{testEndpoints("10.0.0.1")}, testNode(localSources),
			"10.0.0.1:8080 masquerade non-local", ""},

		{"direct", edits{direct, testEndpoints("10.0.0.1")}, testNode(), "10.0.0.1:80 masquerade everyone", "10.0.0.1:80 masquerade host processes"},
		{"direct, with local sources", edits{direct, testEndpoints("10.0.0.1")}, testNode(localSources), "10.0.0.1:80 masquerade non-local", "10.0.0.1:80 masquerade host processes"},
		{"direct, masquerade never", edits{direct, testEndpoints("10.0.0.1")}, testNode(func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:80 masquerade no one", "10.0.0.1:80 masquerade host processes"},
		{"direct, external", edits{external, direct, testEndpoints("10.0.0.1")}, testNode(), "10.0.0.1:80 masquerade everyone", "10.0.0.1:80 masquerade host processes"},
		{"direct, external local", edits{externalLocal, direct, testEndpoints("10.0.0.1", "10.0.0.2 @here")}, testNode(),
			"10.0.0.2:80 masquerade no one", "10.0.0.1:80 10.0.0.2:80 masquerade host processes"},
		{"direct, external local elsewhere", edits{externalLocal, direct, testEndpoints("10.0.0.1")}, testNode(), "drop", "10.0.0.1:80 masquerade host processes"},
		{"direct, internal local elsewhere", edits{internalLocal, direct, testEndpoints("10.0.0.1")}, testNode(), "drop", ""},
		{"direct, no endpoint", edits{direct}, testNode(), "reject", ""},

		{"masquerade auto in a cluster without local sources", edits{inCluster, testEndpoints("10.0.0.1")}, testNode(), "10.0.0.1:8080 masquerade no one", ""},
		{"masquerade auto in a cluster, local sources of the other family", edits{inCluster, testEndpoints("10.0.0.1")},
			testNode(func(n *Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("fd00::/64")} }), "10.0.0.1:8080 masquerade no one", ""},
		{"masquerade auto in a cluster with local sources", edits{inCluster, testEndpoints("10.0.0.1")}, testNode(localSources), "10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade auto in a cluster with local interfaces", edits{inCluster, testEndpoints("10.0.0.1")},
			testNode(func(n *Node) { n.LocalInterfaces = []string{"cni0"} }), "10.0.0.1:8080 masquerade non-local", ""},
		{"masquerade all in a cluster", edits{inCluster, testEndpoints("10.0.0.1")}, testNode(func(n *Node) { n.Masquerade = source.MasqueradeAll }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external in a cluster", edits{inCluster, external, testEndpoints("10.0.0.1")}, testNode(), "10.0.0.1:8080 masquerade everyone", ""},

		{"internal local", edits{internalLocal, testEndpoints("10.0.0.1", "10.0.0.2 @here")}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"internal local by address", edits{internalLocal, testEndpoints("10.0.0.1", "192.0.2.1")}, testNode(),
			"192.0.2.1:8080 masquerade everyone", ""},
		{"internal local, address of this host but another node", edits{internalLocal, testEndpoints("192.0.2.1 @there")}, testNode(), "drop", ""},
		{"internal local, none here", edits{internalLocal, testEndpoints("10.0.0.1")}, testNode(), "drop", ""},
		{"internal local, none at all", edits{internalLocal}, testNode(), "reject", ""},
		{"local fallback is decided on its own", edits{internalLocal, testEndpoints("10.0.0.1", "10.0.0.2 @here terminating")}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},

		{"external", edits{external, testEndpoints("10.0.0.1")}, testNode(func(n *Node) { n.Masquerade = source.MasqueradeNever }),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"external local", edits{externalLocal, testEndpoints("10.0.0.1", "10.0.0.2 @here")}, testNode(),
			"10.0.0.2:8080 masquerade no one", "10.0.0.1:8080 10.0.0.2:8080 masquerade everyone"},
		{"external local with local sources", edits{externalLocal, testEndpoints("10.0.0.1", "10.0.0.2 @here")}, testNode(localSources),
			"10.0.0.2:8080 masquerade no one", "10.0.0.1:8080 10.0.0.2:8080 masquerade host processes"},
		{"external local, none here", edits{externalLocal, testEndpoints("10.0.0.1")}, testNode(),
			"drop", "10.0.0.1:8080 masquerade everyone"},
		{"external local, none at all", edits{externalLocal}, testNode(), "reject", ""},

		{"same zone", edits{testEndpoints("10.0.0.1 zone=b", "10.0.0.2 zone=a", "10.0.0.3"), distribution(source.PreferSameZone)}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"same zone, none near", edits{testEndpoints("10.0.0.1 zone=b", "10.0.0.2 zone=a notready"), distribution(source.PreferSameZone)}, testNode(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"same zone, node without zone", edits{testEndpoints("10.0.0.1", "10.0.0.2 zone=b"), distribution(source.PreferSameZone)}, testNode(func(n *Node) { n.Zone = "" }),
			"10.0.0.1:8080 10.0.0.2:8080 masquerade everyone", ""},
		{"same node", edits{testEndpoints("10.0.0.1 zone=a", "10.0.0.2 @here"), distribution(source.PreferSameNode)}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
		{"same node falls back to zone", edits{testEndpoints("10.0.0.1 zone=a", "10.0.0.2"), distribution(source.PreferSameNode)}, testNode(),
			"10.0.0.1:8080 masquerade everyone", ""},
		{"distribution does not limit local", edits{internalLocal, testEndpoints("10.0.0.1 zone=a", "10.0.0.2 zone=b @here"), distribution(source.PreferSameZone)}, testNode(),
			"10.0.0.2:8080 masquerade everyone", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Resolve(testService(tt.svc...), nil, tt.node, IPv4)
			f := r.Frontends[0]
			if tt.local == "" {
				tt.local = tt.outside
			}
			if got := show(f.Outside); got != tt.outside {
				t.Errorf("outside\n got: %s\nwant: %s", got, tt.outside)
			}
			if got := show(f.Local); got != tt.local {
				t.Errorf("local\n got: %s\nwant: %s", got, tt.local)
			}
			if f.Split() != (tt.local != tt.outside) {
				t.Errorf("Split() = %v", f.Split())
			}
		})
	}
}

func inCluster(s *source.Service) { s.InCluster = true }

func distribution(d source.TrafficDistribution) func(*source.Service) {
	return func(s *source.Service) { s.TrafficDistribution = d }
}

func TestResolveFrontends(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1", "10.0.0.2 weight=0", "fd00::1 notready"))
	svc.VIPs = addrs("10.96.0.10", "fd00:96::10")
	svc.LoadBalancerIPs = addrs("198.51.100.1")
	svc.Ports = []source.Port{
		{Name: "http", Protocol: source.TCP, Port: 80, TargetPort: 8080, NodePort: 30080},
		{Name: "dns", Protocol: source.UDP, Port: 53, TargetPort: 53},
	}
	svc.Endpoints[0].Ports = map[string]uint16{"dns": 5353}
	got := map[Family]string{}
	for _, fam := range []Family{IPv4, IPv6} {
		r := Resolve(svc, nil, testNode(), fam)
		var lines []string
		for _, f := range r.Frontends {
			lines = append(lines, fmt.Sprintf("%s %s:%d/%s %s %s kept %v", f.Key.Kind, f.Key.Addr, f.Key.Port, f.Key.Protocol, f.ServicePort, show(f.Outside), f.Outside.Pool.Kept))
		}
		if len(r.Pools) != 2 {
			t.Errorf("%s: %d pools, want one a port", fam, len(r.Pools))
		}
		got[fam] = strings.Join(lines, "\n")
	}
	want := map[Family]string{
		IPv4: `node-port 0.0.0.0:30080/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
vip 10.96.0.10:80/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
vip 10.96.0.10:53/udp default/web:dns 10.0.0.1:5353 masquerade everyone kept [10.0.0.2:53]
load-balancer 198.51.100.1:80/tcp default/web:http 10.0.0.1:8080 masquerade everyone kept [10.0.0.2:8080]
load-balancer 198.51.100.1:53/udp default/web:dns 10.0.0.1:5353 masquerade everyone kept [10.0.0.2:53]`,
		IPv6: `node-port :::30080/tcp default/web:http reject kept []
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
		{"one family", testService(), true, false},
		{"node port beside an address follows it", testService(func(s *source.Service) { s.Ports[0].NodePort = 30080 }), true, false},
		{"node port only", testService(nodePort), true, true},
		{"neither", testService(func(s *source.Service) { s.VIPs = nil }), false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v4, v6 := Resolve(tt.svc, nil, testNode(), IPv4) != nil, Resolve(tt.svc, nil, testNode(), IPv6) != nil
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
			svc := testService(testEndpoints("10.0.0.1"))
			svc.VIPs, svc.LoadBalancerIPs = nil, addrs("198.51.100.1")
			for _, p := range strings.Fields(tt.ranges) {
				svc.LoadBalancerSourceRanges = append(svc.LoadBalancerSourceRanges, netip.MustParsePrefix(p))
			}
			node := testNode(func(n *Node) {
				n.Addrs = addrs("10.244.1.1", "192.0.2.1", "2001:db8::1")
				for _, p := range strings.Fields(tt.local) {
					n.LocalCIDRs = append(n.LocalCIDRs, netip.MustParsePrefix(p))
				}
			})
			f := Resolve(svc, nil, node, IPv4).Frontends[0]
			if got := fmt.Sprint(f.SourceRanges); !f.Restricted || got != tt.want {
				t.Errorf("restricted %v to %s, want %s", f.Restricted, got, tt.want)
			}
		})
	}
}

// An address among local sources is the node's own where it serves node ports, those of the service.
func TestRangesOfAddressesOfNodePorts(t *testing.T) {
	node := testNode(func(n *Node) {
		n.Addrs = addrs("10.244.1.1", "192.0.2.1")
		n.UpAddrs, n.NodePortAddrs, n.LocalCIDRs = n.Addrs, addrs("192.0.2.1"), prefixes("10.244.1.0/24")
	})
	for _, tt := range []struct{ at, want string }{
		{"", "[10.244.0.0/16]"},
		{"10.244.0.0/16", "[10.244.0.0/16 192.0.2.1/32]"},
	} {
		svc := testService(testEndpoints("10.0.0.1"))
		svc.VIPs, svc.Ports[0].NodePort, svc.SourceRanges = nil, 30080, prefixes("10.244.0.0/16")
		if tt.at != "" {
			svc.NodePortAddresses = source.SelectAddresses([]string{tt.at})
		}
		f := Resolve(svc, nil, node, IPv4).Frontends[0]
		if got := fmt.Sprint(f.SourceRanges); got != tt.want {
			t.Errorf("node ports on %q: restricted to %s, want %s", tt.at, got, tt.want)
		}
		if by := KeptOutBy(svc, node, f, netip.MustParseAddr("192.0.2.1")); (by == "") != (tt.at != "") {
			t.Errorf("node ports on %q: the node is kept out by %q", tt.at, by)
		}
	}
}

// source_ranges are of every kind of frontend, and of load-balancer addresses with their own ranges.
func TestResolveSourceRangesOfAll(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1"))
	svc.VIPs, svc.ExternalIPs, svc.LoadBalancerIPs = addrs("10.96.0.1"), addrs("198.51.100.1"), addrs("198.51.100.2")
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
		svc.SourceRanges, svc.LoadBalancerSourceRanges = prefixes(tt.all), prefixes(tt.balancers)
		node := testNode(func(n *Node) {
			n.Addrs, n.LocalhostNodePorts = addrs("192.0.2.1", "2001:db8::1"), true
		})
		got := map[Kind]string{}
		for _, f := range Resolve(svc, nil, node, IPv4).Frontends {
			got[f.Key.Kind] = fmt.Sprint(f.Key.Kind, " ", f.SourceRanges)
			for _, a := range addrs("10.1.2.1", "10.3.1.1", "192.0.2.1", "198.51.100.2") {
				if by := KeptOutBy(svc, node, f, a); (by == "") != f.Admits(a) {
					t.Errorf("%s + %s: %s of %v kept out by %q, admitted %v", tt.all, tt.balancers, a, f.Key, by, f.Admits(a))
				}
			}
		}
		if text := strings.Join([]string{got[VIP], got[External], got[LoadBalancer], got[NodePort]}, " "); text != tt.want {
			t.Errorf("%s + %s:\n%s\nwant\n%s", tt.all, tt.balancers, text, tt.want)
		}
	}
}

// What two lists have in common is what is in both, whatever lies in what.
func TestInBoth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Custom(func(t *rapid.T) netip.Prefix {
			bits := rapid.IntRange(24, 32).Draw(t, "bits")
			a := netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 63).Draw(t, "last"))})
			return netip.PrefixFrom(a, bits).Masked()
		})
		list := func(name string) []netip.Prefix {
			return withoutContained(rapid.SliceOfN(draw, 0, 6).Draw(t, name))
		}
		a, b := list("a"), list("b")
		both := InBoth(a, b)
		for i := range 256 {
			addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
			if inAny(both, addr) != (inAny(a, addr) && inAny(b, addr)) {
				t.Fatalf("%s: %v of %v and %v", addr, both, a, b)
			}
		}
		if again := withoutContained(slices.Clone(both)); !slices.Equal(again, both) {
			t.Fatalf("%v is not sorted, or overlaps", both)
		}
	})
}

// Node ports are on the addresses that the service selects of those that are up.
func TestResolveNodePortAddresses(t *testing.T) {
	node := testNode(func(n *Node) {
		n.Addrs = addrs("192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1")
		n.UpAddrs, n.PrimaryAddrs = addrs("192.0.2.1", "198.51.100.1", "2001:db8::1"), addrs("198.51.100.1", "2001:db8::1")
	})
	localhost := *node
	localhost.LocalhostNodePorts = true
	for _, tt := range []struct {
		list      []string
		node      *Node
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
		svc := testService(testEndpoints("10.0.0.1", "fd00::1"))
		svc.VIPs, svc.Ports[0].NodePort = nil, 30080
		if tt.list != nil {
			svc.NodePortAddresses = source.SelectAddresses(tt.list)
		}
		for fam, want := range map[Family]string{IPv4: tt.four, IPv6: tt.six} {
			got, host := "none", tt.node.Host(fam)
			if list := Resolve(svc, nil, tt.node, fam).Frontends; len(list) > 0 {
				got = fmt.Sprint(host.Addrs(list[0]))
			}
			if got != want {
				t.Errorf("%q, %s: node port on %s, want %s", tt.list, fam, got, want)
			}
		}
	}
}

func prefixes(text string) (list []netip.Prefix) {
	for _, p := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// Other ports of an address that routers send here are refused, unless an interface of this host carries it.
func TestResolveRefusesAnnounced(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1"), balanced("203.0.113.1", "192.0.2.1", "2001:db8::9"))
	svc.ExternalIPs = addrs("203.0.113.1", "203.0.113.2")
	for means, want := range map[source.Means]string{
		0: "10.96.0.10", source.L2: "10.96.0.10", source.BGP: "10.96.0.10 203.0.113.1 203.0.113.2",
	} {
		svc.Announce = means
		if got := Resolve(svc, nil, testNode(), IPv4).RefusedVIPs; !slices.Equal(got, addrs(strings.Fields(want)...)) {
			t.Errorf("announced by %q: %v, want %s", means, got, want)
		}
	}
}

func TestResolveShared(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.1", "10.0.0.2 @here"))
	svc.VIPs = addrs("10.96.0.10", "192.0.2.1")
	svc.ExternalIPs = addrs("203.0.113.1", "10.96.9.9")
	svc.ExternalTrafficPolicy = source.Local
	node := testNode(func(n *Node) { n.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")} })
	r := Resolve(svc, nil, node, IPv4)
	if want := addrs("10.96.0.10"); !slices.Equal(r.RefusedVIPs, want) {
		t.Errorf("RefusedVIPs %v, want %v: not the host's own address", r.RefusedVIPs, want)
	}
	want := []Hairpin{NewHairpin(netip.MustParseAddrPort("10.0.0.2:8080"), source.TCP)}
	if got := slices.Collect(r.Hairpins()); !slices.Equal(got, want) {
		t.Errorf("Hairpins %v, want %v: the targets of routes that do not masquerade everyone", got, want)
	}
	if len(r.Warnings) != 1 {
		t.Errorf("Warnings %q, want one about 192.0.2.1", r.Warnings)
	}
}

// Ports that lead to the same port of an endpoint have pools of their own; that it may reach
// itself is said once. Another protocol is another thing.
func TestHairpinsAreDistinct(t *testing.T) {
	svc := testService(testEndpoints("10.0.0.2", "10.0.0.1"), func(s *source.Service) {
		s.Masquerade = source.MasqueradeNever
		s.Ports = []source.Port{
			{Name: "a", Protocol: source.TCP, Port: 80, TargetPort: 8080}, {Name: "b", Protocol: source.TCP, Port: 81, TargetPort: 8080},
			{Name: "c", Protocol: source.UDP, Port: 80, TargetPort: 8080},
		}
	})
	want := map[Hairpin]int{}
	for _, a := range []string{"10.0.0.1:8080", "10.0.0.2:8080"} {
		for _, protocol := range []source.Protocol{source.TCP, source.UDP} {
			want[NewHairpin(netip.MustParseAddrPort(a), protocol)] = 1
		}
	}
	got := map[Hairpin]int{}
	for h := range Resolve(svc, nil, testNode(), IPv4).Hairpins() {
		got[h]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want each once: %v", got, want)
	}
}

func TestHairpinAddrPort(t *testing.T) {
	for _, text := range []string{"10.0.0.1:80", "[2001:db8::1]:65535", "0.0.0.0:1"} {
		at := netip.MustParseAddrPort(text)
		if got := NewHairpin(at, source.TCP).AddrPort(); got != at {
			t.Errorf("got %v, want %v", got, at)
		}
	}
}

// An endpoint that answers itself does not reach itself: only what rules balance may do so.
func TestHairpinsOfAnsweringEndpoints(t *testing.T) {
	for _, tt := range []struct {
		node *Node
		want int
	}{{testNode(), 0}, {testNode(func(n *Node) { n.LocalCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }), 2}} {
		r := Resolve(testService(direct, testEndpoints("10.0.0.1", "10.0.0.2")), nil, tt.node, IPv4)
		if got := slices.Collect(r.Hairpins()); len(got) != tt.want {
			t.Errorf("local sources %v: hairpins %v, want %d", tt.node.LocalCIDRs, got, tt.want)
		}
	}
}
