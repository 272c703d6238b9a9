//go:build netns

package lab

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// What a service says of its own, in place of the settings or beside another key of it.
var serviceGroups = []group{{
	name:     "of a service",
	settings: localCIDRs,
	cases: []testCase{
		{name: "source ranges of all addresses", run: testSourceRangesOfAll},
		{name: "masquerade of the service", run: testServiceMasquerade},
		{name: "node ports of the service", run: testServiceNodePorts},
	},
}}

func testSourceRangesOfAll(t *testing.T, e *env) {
	inside, outside := e.Client.Addrs[0], e.Client.Addrs[1]
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	flows := e.flows(t, e.vip(1), 80, by(e.Local[0], e.Remote[0]))
	s.SourceRanges = prefixes(inside)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	admitted, others := flowsFrom(flows, inside)
	e.flowsMeet(t, admitted, both)
	e.flowsMeet(t, others, dropped) // although they are established
	e.expect(t, fromSource(inside, e.everyAddress(e.Client, both))...)
	e.expect(t, fromSource(outside, e.everyAddress(e.Client, dropped))...)
	e.expect(t,
		check{from: e.Local[2], to: e.vip(1), want: dropped},
		check{from: e.Node, to: e.vip(1), want: dropped},
		check{from: e.Node, to: e.external(1), want: dropped},
		check{from: e.Node, to: UplinkAddr, port: e.nodePort(), want: dropped},
	)

	// With both lists a source must be in both; a range with an address of the node lets the node in.
	s.SourceRanges = slices.Concat(prefixes(inside), prefixes(FrontAddr))
	s.LoadBalancerSourceRanges = prefixes(FrontAddr)
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Node, both)...)
	e.expect(t,
		check{from: e.Client, source: inside, to: e.vip(1), want: both},
		check{from: e.Client, source: inside, to: UplinkAddr, port: e.nodePort(), want: both},
		check{from: e.Client, source: inside, to: e.loadBalancer(1), want: dropped},
	)

	s.SourceRanges, s.LoadBalancerSourceRanges = s.SourceRanges[:1], nil // IPv4 only
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: inside, to: Dual{V4: e.vip(1).V4}, want: both},
		check{from: e.Client, source: inside, to: Dual{V6: e.vip(1).V6}, want: dropped},
		check{from: e.Client, source: inside, to: Dual{V6: UplinkAddr.V6}, port: e.nodePort(), want: dropped},
	)
}

// flowsFrom returns the flows from an address, and of the others one for each host and family.
func flowsFrom(flows []*Flow, a Dual) (from, others []*Flow) {
	seen := make(map[string]bool)
	for _, f := range flows {
		switch src := f.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); {
		case src == a.V4, src == a.V6:
			from = append(from, f)
		case !seen[src.String()]:
			seen[src.String()] = true
			others = append(others, f)
		}
	}
	return from, others
}

// fromSource returns checks with one of the addresses of who asks.
func fromSource(a Dual, checks []check) []check {
	for i := range checks {
		checks[i].source = a
	}
	return checks
}

func testServiceMasquerade(t *testing.T, e *env) {
	e.carry(t, "lo", strayAddr)
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.Masquerade = "never"
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	e.expect(t, e.everyAddress(e.Client, both.keeping())...)
	e.expect(t, e.everyAddress(e.Local[1], both.keeping())...)
	e.expect(t,
		check{from: e.Node, source: strayAddr, to: e.vip(1), want: both.keeping()},
		check{from: e.Node, source: strayAddr, to: e.external(1), want: both.masked()},
		check{from: e.Node, source: strayAddr, to: UplinkAddr, port: e.nodePort(), want: both.masked()},
	)
	s.Masquerade = "all"
	e.apply(t, s)
	e.expect(t, check{from: e.Local[1], to: e.vip(1), want: both.masked()})
	s.Masquerade = "auto"
	e.apply(t, s)
	e.expect(t, check{from: e.Local[1], to: e.vip(1), want: both.keeping()}, check{from: e.Local[1], to: e.external(1), want: both.masked()})

	s.Masquerade, s.Endpoints = "never", at(e.Local[0])
	e.apply(t, s)
	e.expect(t, e.everyAddress(e.Local[0], by(e.Local[0]).masked())...)
}

func testServiceNodePorts(t *testing.T, e *env) {
	e.serve(t, UplinkAddr, e.nodePort())
	both := by(e.Local[0], e.Remote[0])
	atFront := check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: both.masked()}
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.NodePortAddresses = []string{"10.2.0.0/24", "fd00:2::/64"}
	e.apply(t, s)
	e.expect(t, atFront,
		check{from: e.Node, to: FrontAddr, port: e.nodePort(), want: both},
		check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: by(e.Node)},
		check{from: e.Node, to: UplinkAddr, port: e.nodePort(), want: by(e.Node)},
	)

	// The other keys go with it: who may use it, and local endpoints alone, with the client's address.
	s.SourceRanges, s.ExternalTrafficPolicy = prefixes(e.Client.Addrs[0]), "local"
	e.apply(t, s)
	e.expect(t, fromSource(e.Client.Addrs[0], []check{{from: e.Client, to: FrontAddr, port: e.nodePort(), want: by(e.Local[0]).keeping()}})...)
	e.expect(t, fromSource(e.Client.Addrs[1], []check{{from: e.Client, to: FrontAddr, port: e.nodePort(), want: dropped}})...)
	e.expect(t, check{from: e.Client, source: e.Client.Addrs[1], to: UplinkAddr, port: e.nodePort(), want: by(e.Node)})

	s.SourceRanges, s.ExternalTrafficPolicy, s.NodePortAddresses = nil, "", []string{"all"}
	e.apply(t, s)
	e.expect(t, atFront, check{from: e.Client, to: UplinkAddr, port: e.nodePort(), want: both.masked()})

	second := Dual{netip.MustParseAddr("10.3.77.2"), netip.MustParseAddr("fd00:3:0:77::2")} // of no network
	t.Run("address added", func(t *testing.T) {
		e.carry(t, "uplink", second)
		e.expect(t, check{from: e.Client, to: second, port: e.nodePort(), want: both.masked()})
	})
	s.Endpoints = nil
	e.apply(t, s)
	e.expect(t, check{from: e.Client, to: FrontAddr, port: e.nodePort(), want: refused})
}
