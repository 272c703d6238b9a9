package report

import (
	"errors"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/source"
)

// Who has endpoints answer clients themselves is warned of those that packets do not get to.
func TestDoubtsOfAnsweringEndpoints(t *testing.T) {
	routers := map[netip.Addr]netip.Addr{
		netip.MustParseAddr("10.0.1.1"): netip.MustParseAddr("192.0.2.254"),
		netip.MustParseAddr("10.0.1.2"): netip.MustParseAddr("192.0.2.254"),
	}
	by := func(a netip.Addr) (netip.Addr, error) { return routers[a], nil }
	none := func(netip.Addr) (netip.Addr, error) {
		return netip.MustParseAddr("192.0.2.254"), errors.New("no route")
	}
	direct, tunnel := source.Forwarding{Method: source.ForwardDirect}, source.Forwarding{Method: source.ForwardTunnel, Tunnel: source.IPIP}
	const behind = `endpoint 10.0.1.1 is behind the router 192.0.2.254, and forward is "direct": the router sends its packets back`
	const hint = `; forward = "tunnel" gets through routers`
	for _, tt := range []struct {
		name      string
		forward   source.Forwarding
		endpoints []string
		router    func(netip.Addr) (netip.Addr, error)
		disabled  bool
		want      string
	}{
		{name: "on the link", forward: direct, endpoints: []string{"10.0.0.1"}, router: by},
		{name: "behind a router", forward: direct, endpoints: []string{"10.0.0.1", "10.0.1.1"}, router: by, want: behind + hint},
		{name: "two behind a router", forward: direct, endpoints: []string{"10.0.1.1", "10.0.1.2"}, router: by, want: behind + "; so is it with 1 more endpoints" + hint},
		{name: "a tunnel", forward: tunnel, endpoints: []string{"10.0.1.1"}, router: by},
		{name: "masqueraded", endpoints: []string{"10.0.1.1"}, router: by},
		{name: "not known", forward: direct, endpoints: []string{"10.0.1.1"}},
		{name: "no route", forward: direct, endpoints: []string{"10.0.1.1"}, router: none},
		{name: "disabled", forward: direct, endpoints: []string{"10.0.1.1"}, router: by, disabled: true},
		{name: "this host", forward: tunnel, endpoints: []string{"192.0.2.1"}, router: by,
			want: `endpoint 192.0.2.1 is an address of this host, and forward is "tunnel": only a program here that listens on the addresses of the service answers`},
		{name: "masqueraded to this host", endpoints: []string{"192.0.2.1"}, router: by},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := policytest.Service(policytest.Endpoints(tt.endpoints...))
			s.Forward, s.Disabled = tt.forward, tt.disabled
			got := ""
			on := here(nil)
			on.Router = tt.router
			for _, d := range doubts([]*source.Service{s}, on) {
				got += d.String()
			}
			if got != tt.want {
				t.Errorf("\n got: %s\nwant: %s", got, tt.want)
			}
		})
	}
}

// However many endpoints there are, one look asks for the way to some of them only.
func TestDoubtsAskForSomeWays(t *testing.T) {
	s, asked := policytest.Service(), 0
	s.Forward.Method = source.ForwardDirect
	for i := range 2 * maxAsked {
		s.Endpoints = append(s.Endpoints, source.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})})
	}
	doubts([]*source.Service{s}, Snapshot{Surroundings: Surroundings{Router: func(netip.Addr) (netip.Addr, error) { asked++; return netip.Addr{}, nil }}})
	if asked != maxAsked {
		t.Errorf("asked for %d ways, want %d", asked, maxAsked)
	}
}
