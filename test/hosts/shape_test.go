//go:build netns

package hosts

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/test/lab"
)

// A shape is how the host and the routers of a site are connected, and what that asks of their configuration.
type shape struct {
	frr, bird lab.Dual                   // addresses of the routers; the first is in the configuration
	on        func(lab.Dual) lab.Dual    // the addresses of those that a host has on the network of the sessions
	join      func(*site, *router) []way // connects a router, and says how its client is reached
	peer      func(*router) netip.Addr   // the address of the router in svcproxy.toml
	ofPeer    string                     // what else is said of the router there
	changes   func(*router) [][2]string  // of the configuration of docs/many-hosts.md
}

// A way is a host, and by which addresses it sends what is for a client of a router.
type way struct {
	host   *lab.Host
	v4, v6 string
}

// near has all on one network, and sessions over IPv4.
var near = shape{
	frr: pair("192.0.2.254", "2001:db8:2::254"), bird: pair("192.0.2.253", "2001:db8:2::253"),
	on: func(d lab.Dual) lab.Dual { return d },
	join: func(s *site, r *router) []way {
		s.plug(r.host, r.name, r.host.Addr())
		return []way{{s.host, r.host.Addr().V4.String(), r.host.Addr().V6.String()}}
	},
	peer:    func(r *router) netip.Addr { return r.host.Addr().V4 },
	changes: func(*router) [][2]string { return nil },
}

// onlyIPv6 has no IPv4 address between the host and routers: IPv4 routes have IPv6 next hops (RFC 8950).
var onlyIPv6 = shape{
	frr: near.frr, bird: near.bird,
	on: func(d lab.Dual) lab.Dual { return lab.Dual{V6: d.V6} },
	join: func(s *site, r *router) []way {
		s.plug(r.host, r.name, lab.Dual{V6: r.host.Addr().V6})
		v6 := r.host.Addr().V6.String()
		return []way{{s.host, "inet6 " + v6, v6}}
	},
	peer: func(r *router) netip.Addr { return r.host.Addr().V6 },
	changes: func(r *router) [][2]string {
		host := [2]string{" 192.0.2.1 ", " " + hostAddr.V6.String() + " "}
		if r.name == "frr" {
			return [][2]string{host, {" neighbor services timers", " neighbor services capability extended-nexthop\n neighbor services timers"}}
		}
		return [][2]string{
			host, {"local " + r.host.Addr().V4.String(), "local " + r.host.Addr().V6.String()}, {"ipv4 {\n", "ipv4 {\n\t\textended next hop on;\n"},
		}
	},
}

// far has a router that speaks no BGP between the host and each of the others.
var far = shape{
	frr: pair("198.51.100.1", "2001:db8:51::1"), bird: pair("198.51.101.1", "2001:db8:52::1"),
	on: near.on, join: joinFar, peer: near.peer, ofPeer: "multihop = 2\n",
	changes: func(r *router) [][2]string {
		if r.name == "frr" {
			return [][2]string{{" neighbor services timers", " neighbor services ebgp-multihop 2\n neighbor services timers"}}
		}
		static := fmt.Sprintf("protocol static { ipv4; route 192.0.2.0/24 via %s; }\nprotocol static { ipv6; route 2001:db8:2::/64 via %s; }\n", beside(r).V4, beside(r).V6)
		return [][2]string{{"template bgp services {\n", static + "template bgp services {\n\tmultihop 2;\n"}}
	},
}

// beside returns the address of the router between the host and r on the network of r.
func beside(r *router) lab.Dual {
	next := func(a netip.Addr) netip.Addr { return a.Next() }
	return lab.Dual{V4: next(r.host.Addr().V4), V6: next(r.host.Addr().V6)}
}

func joinFar(s *site, r *router) []way {
	onLAN := pair("192.0.2.25"+fmt.Sprint(r.as%10), "2001:db8:2::25"+fmt.Sprint(r.as%10))
	hop := newHost(s.t, s.n, r.name+"-hop", onLAN)
	s.forwards(hop)
	s.plug(hop, r.name, onLAN)
	s.link(lab.End{Host: hop, Name: "far", Addrs: []lab.Dual{beside(r)}}, lab.End{Host: r.host, Name: "lan", Addrs: r.host.Addrs})
	s.run(s.host, fmt.Sprintf("ip route add %s via %s", r.host.Addr().V4, onLAN.V4), fmt.Sprintf("ip route add %s via %s", r.host.Addr().V6, onLAN.V6))
	for i, a := range announced.Each() {
		s.run(hop, fmt.Sprintf("ip route add %s via %s", a, hostAddr.Each()[i]))
	}
	if r.name == "frr" { // takes routes of the kernel for its own; BIRD has those of its configuration
		s.run(r.host, fmt.Sprintf("ip route add 192.0.2.0/24 via %s", beside(r).V4), fmt.Sprintf("ip route add 2001:db8:2::/64 via %s", beside(r).V6))
	}
	return []way{{s.host, onLAN.V4.String(), onLAN.V6.String()}, {hop, r.host.Addr().V4.String(), r.host.Addr().V6.String()}}
}

// TestShapes: routers that are not directly connected, and those that have no IPv4 network with the host, get
// routes of both families that lead to it.
func TestShapes(t *testing.T) {
	for name, sh := range map[string]shape{"far": far, "only IPv6": onlyIPv6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSiteOf(t, sh)
			s.service()
			s.serve()
			s.settings(bgpSettings{hold: "9s", restart: "60s"})
			start := time.Now()
			s.must(s.d.Start())
			s.there("start", start)
			start = time.Now()
			s.unserve()
			s.gone("the last endpoint died", start)
		})
	}
}
