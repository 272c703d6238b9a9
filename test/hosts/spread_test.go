//go:build netns

package hosts

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/test/lab"
)

// Numbers of a spread.
const (
	clientAddresses = 100 // each goes to one balancer
	endpointCount   = 20
)

// A spread is some balancers, hosts that run svcproxy with the same services, between two routers
// that spread connections over them:
//
//	clients ── front ─┬─ a ─┬─ back ── endpoints
//	                  ├─ b ─┤
//	                  ├─ c ─┤
//	                  └─────┘
//
// What clients send to endpoints themselves takes none of these ways; but its answers do.
//
// The client's address is kept, so an answer must take the way of its question: only the balancer
// that translated the one can translate the other back. An answer has the endpoint's address where
// the question has the service's; what both have, beside the protocol, is the client. So front
// chooses by a hash of the source address and back by the same hash of the destination address:
// fib_multipath_hash_policy 3 hashes the fields that fib_multipath_hash_fields names, in an order
// that source and destination do not change. The secret of the hash is one for all namespaces of a
// kernel; routers of their own need the same fib_multipath_hash_seed, which Linux has since 6.11,
// and next hops in the same order. Not ports: fragments have none, nor have ICMP errors.
type spread struct {
	*lab.Network
	clients, front, back *lab.Host
	endpoints            []*lab.Host // addresses in one namespace
	balancers            []*balancer
}

// A balancer is a host that runs svcproxy.
type balancer struct {
	*lab.Host
	*lab.Daemon
	front, back lab.Dual // its addresses on the links to the routers
}

// network returns an address of 10.<n>.0.0/24 and fd00:<n>::/64.
func network(n, host int) lab.Dual {
	return pair(fmt.Sprintf("10.%d.0.%d", n, host), fmt.Sprintf("fd00:%x::%x", n, host))
}

func networks(n, first, count int) (list []lab.Dual) {
	for i := range count {
		list = append(list, network(n, first+i))
	}
	return list
}

// The networks of a spread; those of the balancers' links are numbered on.
const (
	clientsNet   = 1
	endpointsNet = 5
	frontNet     = 20
	backNet      = 30
	directNet    = 40
)

var spreadVIP = pair("10.96.0.1", "fd00:96::1")

// newSpread makes a network of so many balancers, on which svcproxy does not run yet.
func newSpread(t *testing.T, balancers int) *spread {
	t.Helper()
	n := newNetwork(t)
	s := &spread{
		Network: n,
		clients: newHost(t, n, "clients", networks(clientsNet, 10, clientAddresses)...),
		front:   newHost(t, n, "front", network(clientsNet, 1)),
		back:    newHost(t, n, "back", network(endpointsNet, 1)),
	}
	servers := newHost(t, n, "servers", networks(endpointsNet, 11, endpointCount)...)
	spreadLink(t, lab.End{Host: s.clients, Name: "eth0", Addrs: s.clients.Addrs}, lab.End{Host: s.front, Name: "clients", Addrs: s.front.Addrs})
	spreadLink(t, lab.End{Host: servers, Name: "eth0", Addrs: servers.Addrs}, lab.End{Host: s.back, Name: "endpoints", Addrs: s.back.Addrs})
	spreadRoute(t, s.clients, s.front.Addr(), "default")
	spreadRoute(t, servers, s.back.Addr(), "default")
	for i, addr := range servers.Addrs {
		s.endpoints = append(s.endpoints, &lab.Host{Namespace: servers.Namespace, Role: fmt.Sprint("endpoint", i), Addrs: []lab.Dual{addr}})
	}
	for i := range balancers {
		s.balancers = append(s.balancers, s.newBalancer(t, i))
	}
	spreadLink(t, lab.End{Host: s.front, Name: "back", Addrs: networks(directNet, 1, 1)}, lab.End{Host: s.back, Name: "front", Addrs: networks(directNet, 2, 1)})
	spreadRoute(t, s.front, network(directNet, 2), prefixes(endpointsNet)...)
	spreadRouter(t, s.front, "1") // FIB_MULTIPATH_HASH_FIELD_SRC_IP, <net/ip_fib.h>
	spreadRouter(t, s.back, "2")  // FIB_MULTIPATH_HASH_FIELD_DST_IP
	return s
}

func (s *spread) newBalancer(t *testing.T, i int) *balancer {
	t.Helper()
	b := &balancer{front: network(frontNet+i, 2), back: network(backNet+i, 2)}
	b.Host = newHost(t, s.Network, string(rune('a'+i)), b.front, b.back)
	spreadLink(t, lab.End{Host: b.Host, Name: "front", Addrs: []lab.Dual{b.front}}, lab.End{Host: s.front, Name: b.Role, Addrs: []lab.Dual{network(frontNet+i, 1)}})
	spreadLink(t, lab.End{Host: b.Host, Name: "back", Addrs: []lab.Dual{b.back}}, lab.End{Host: s.back, Name: b.Role, Addrs: []lab.Dual{network(backNet+i, 1)}})
	s.connect(t, b, i)
	spreadRoute(t, s.back, b.back, prefixes(frontNet+i)...) // what the host itself sends is from there
	spreadSysctl(t, b.Host, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.ipv6.conf.all.keep_addr_on_down=1")
	b.Daemon = newDaemon(t, b.Host, s.endpoints[0].Addr())
	return b
}

// connect gives the i-th balancer its routes, which go with its links.
func (s *spread) connect(t *testing.T, b *balancer, i int) {
	t.Helper()
	spreadRoute(t, b.Host, network(frontNet+i, 1), "default")
	spreadRoute(t, b.Host, network(backNet+i, 1), prefixes(endpointsNet)...)
}

// prefixes returns a network in both families.
func prefixes(n int) []string {
	return []string{network(n, 0).V4.String() + "/24", network(n, 0).V6.String() + "/64"}
}

func spreadLink(t *testing.T, a, b lab.End) {
	t.Helper()
	if err := lab.Link(a, b); err != nil {
		t.Fatal(err)
	}
}

// spreadRoute sends what is for one of some destinations by way of via; "default" is of both families.
func spreadRoute(t *testing.T, h *lab.Host, via lab.Dual, to ...string) {
	t.Helper()
	var routes []string
	for _, dst := range to {
		if dst == "default" || !strings.Contains(dst, ":") {
			routes = append(routes, dst+" via "+via.V4.String())
		}
		if dst == "default" || strings.Contains(dst, ":") {
			routes = append(routes, dst+" via "+via.V6.String())
		}
	}
	spreadRoutes(t, h, routes)
}

// spreadRoutes makes routes in one run of ip, for in a guest each takes long.
func spreadRoutes(t *testing.T, h *lab.Host, routes []string) {
	t.Helper()
	var batch strings.Builder
	for _, r := range routes {
		fmt.Fprintln(&batch, "route replace", r)
	}
	if _, err := h.RunInput(batch.String(), "ip", "-batch", "-"); err != nil {
		t.Fatal(err)
	}
}

func spreadSysctl(t *testing.T, h *lab.Host, settings ...string) {
	t.Helper()
	if err := h.Sysctl(settings...); err != nil {
		t.Fatal(err)
	}
}

// run runs a command on a host, which must succeed.
func inHost(t *testing.T, h *lab.Host, name string, args ...string) string {
	t.Helper()
	out, err := h.Run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// router makes a host forward, and choose among next hops by a field of packets.
func spreadRouter(t *testing.T, h *lab.Host, field string) {
	t.Helper()
	spreadSysctl(t, h, "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.ipv4.fib_multipath_hash_policy=3", "net.ipv4.fib_multipath_hash_fields="+field,
		"net.ipv6.fib_multipath_hash_policy=3", "net.ipv6.fib_multipath_hash_fields="+field)
}

// over has the routers spread connections over some balancers, as BGP would.
func (s *spread) over(t *testing.T, list ...*balancer) {
	t.Helper()
	hops := func(to string, via func(*balancer) netip.Addr) string {
		for _, b := range list {
			to += " nexthop via " + via(b).String()
		}
		return to
	}
	back := prefixes(clientsNet)
	spreadRoutes(t, s.front, []string{
		hops(spreadVIP.V4.String(), func(b *balancer) netip.Addr { return b.front.V4 }),
		hops(spreadVIP.V6.String(), func(b *balancer) netip.Addr { return b.front.V6 }),
	})
	spreadRoutes(t, s.back, []string{
		hops(back[0], func(b *balancer) netip.Addr { return b.back.V4 }),
		hops(back[1], func(b *balancer) netip.Addr { return b.back.V6 }),
	})
}

// cut takes a balancer off the network; its routers learn of that by BGP, after a while.
func (s *spread) cut(t *testing.T, b *balancer) {
	t.Helper()
	for _, name := range []string{"front", "back"} {
		inHost(t, b.Host, "ip", "link", "set", name, "down")
	}
}

// rejoin undoes cut.
func (s *spread) rejoin(t *testing.T, b *balancer) {
	t.Helper()
	for _, name := range []string{"front", "back"} {
		inHost(t, b.Host, "ip", "link", "set", name, "up")
	}
	s.connect(t, b, slices.Index(s.balancers, b))
}

// passing returns the clients, addresses and ports, whose connections a balancer has translated.
func (b *balancer) passing(t *testing.T, protocol string) map[netip.AddrPort]bool {
	t.Helper()
	clients := make(map[netip.AddrPort]bool)
	for family, addr := range map[string]netip.Addr{"ipv4": spreadVIP.V4, "ipv6": spreadVIP.V6} {
		out := inHost(t, b.Host, "conntrack", "-L", "-f", family, "-p", protocol, "--orig-dst", addr.String())
		for line := range strings.Lines(out) {
			if from, ok := original(line); ok {
				clients[from] = true
			}
		}
	}
	return clients
}

// original returns the source of the direction in which a connection began, as a line of conntrack -L tells it.
func original(line string) (netip.AddrPort, bool) {
	_, line, _ = strings.Cut(line, "src=")
	addr, line, _ := strings.Cut(line, " ")
	_, line, _ = strings.Cut(line, "sport=")
	port, _, _ := strings.Cut(line, " ")
	from, err := netip.ParseAddr(addr)
	n, errPort := strconv.ParseUint(port, 10, 16)
	return netip.AddrPortFrom(from, uint16(n)), err == nil && errPort == nil
}
