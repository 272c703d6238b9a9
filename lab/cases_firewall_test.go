//go:build netns

package lab

import (
	"net/netip"
	"testing"
)

var firewallGroups = []group{
	{
		name: "source ranges",
		cases: []testCase{
			{name: "source ranges", run: testSourceRanges},
			{name: "source ranges of the node", run: testNodeSourceRanges},
			{name: "source ranges without endpoints", run: testSourceRangesNoEndpoints},
		},
	},
	{
		name:     "firewall",
		settings: "[sync]\nresync_interval = \"1s\"\n", // when a policy that changes is noticed
		cases:    []testCase{{name: "drop policy of forward", run: testForwardDrop, except: []string{"nftables"}}},
	},
}

func testSourceRanges(t *testing.T, e *env) {
	inside, outside := e.Client.Addrs[0], e.Client.Addrs[1]
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	s.LoadBalancerSourceRanges = prefixes(inside)
	e.apply(t, s)
	both := by(e.Local[0], e.Remote[0])
	e.expect(t,
		check{from: e.Client, source: inside, to: e.loadBalancer(1), want: both},
		check{from: e.Client, source: outside, to: e.loadBalancer(1), want: dropped},
		check{from: e.Local[2], to: e.loadBalancer(1), want: dropped},
		check{from: e.Node, to: e.loadBalancer(1), want: dropped},
		check{from: e.Client, source: outside, to: e.external(1), want: both},
		check{from: e.Client, source: outside, to: e.vip(1), want: both},
		check{from: e.Client, source: outside, to: UplinkAddr, port: e.nodePort(), want: both},
	)

	s.LoadBalancerSourceRanges = s.LoadBalancerSourceRanges[:1] // IPv4 only
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: inside, to: Dual{V4: e.loadBalancer(1).V4}, want: both},
		check{from: e.Client, source: inside, to: Dual{V6: e.loadBalancer(1).V6}, want: dropped},
	)

	s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: outside, to: e.loadBalancer(1), want: both},
		check{from: e.Node, to: e.loadBalancer(1), want: both},
	)

	s.LoadBalancerSourceRanges = nil
	e.apply(t, s)
	e.expect(t, check{from: e.Client, source: outside, to: e.loadBalancer(1), want: both})
}

// prefixes returns ranges of one address each.
func prefixes(d Dual) []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(d.V4, 32), netip.PrefixFrom(d.V6, 128)}
}

// testNodeSourceRanges: a range with an address of the node lets the node in by
// all of its addresses, and by the load-balancer address, which it carries.
func testNodeSourceRanges(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.LoadBalancerSourceRanges = prefixes(FrontAddr)
	e.apply(t, s)
	e.carry(t, "lo", e.loadBalancer(1))
	e.expect(t,
		check{from: e.Node, source: FrontAddr, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, source: UplinkAddr, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, source: e.loadBalancer(1), to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Node, to: e.loadBalancer(1), want: by(e.Local[0])},
		check{from: e.Client, to: e.loadBalancer(1), want: dropped},
		check{from: e.Local[2], to: e.loadBalancer(1), want: dropped},
	)
}

func testSourceRangesNoEndpoints(t *testing.T, e *env) {
	s := e.everywhere()
	s.LoadBalancerSourceRanges = prefixes(e.Client.Addrs[0])
	e.apply(t, s)
	e.expect(t,
		check{from: e.Client, source: e.Client.Addrs[0], to: e.loadBalancer(1), want: refused},
		check{from: e.Client, source: e.Client.Addrs[1], to: e.loadBalancer(1), want: dropped},
		check{from: e.Client, source: e.Client.Addrs[1], to: e.external(1), want: refused},
	)
}

// testForwardDrop: a firewall that forwards nothing does not stop our own traffic, and we open nothing else.
func testForwardDrop(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0], e.Remote[0])...)
	e.apply(t, s)
	if err := setForwardPolicy(e.Node, e.mode.variant, "DROP"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := setForwardPolicy(e.Node, e.mode.variant, "ACCEPT"); err != nil {
			t.Error(err)
		}
	})
	e.expect(t, e.everyAddress(e.Client, by(e.Local[0], e.Remote[0]))...)
	e.expect(t,
		check{from: e.Local[2], to: e.vip(1), want: by(e.Local[0], e.Remote[0])},
		check{from: e.Client, to: e.Local[0].Addr(), port: 8080, want: dropped},
		check{from: e.Client, to: e.external(2), want: dropped},
	)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	e.expect(t, e.outsideAddresses(e.Client, by(e.Local[0]).keeping())...)

	// Established connections go on when their endpoint has left, masqueraded or not.
	conns := append(e.connections(t, e.Client, e.vip(1), 80), e.connections(t, e.Client, e.external(1), 80)...)
	for _, endpoints := range [][]Endpoint{with(weight(0), e.Local[0], e.Remote[0]), at(e.Remote[1])} {
		s.Endpoints = endpoints
		e.apply(t, s)
		e.goOn(t, "whose endpoint is at rest or has left", conns)
	}
}
