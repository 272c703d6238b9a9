package ipvs

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/netutil/lvs"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Where an external address is an address of the node, and another service has its
// port for a node port, who takes new connections has the server; of two, the address.
func TestAddressMeetsNodePort(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.1")
	at, left := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	balanced := policy.Route{Pool: &policy.Pool{Targets: []policy.Target{policy.NewTarget(at, 1)}}}
	kept := policy.Route{Action: policy.Reject, Pool: &policy.Pool{Kept: []netip.AddrPort{left}}}
	nobody := policy.Route{Action: policy.Reject, Pool: &policy.Pool{}}
	for _, tt := range []struct {
		what              string
		address, nodePort policy.Route
		want              string // whose server
	}{
		{"both", balanced, balanced, "address"},
		{"address keeps", kept, balanced, "node-port"},
		{"address refuses", nobody, balanced, "node-port"},
		{"node port keeps", balanced, kept, "address"},
		{"both keep", kept, kept, "address"},
	} {
		frontend := func(name string, route policy.Route, addr netip.Addr, kind policy.Kind) *policy.Resolved {
			f := &policy.Frontend{Key: policy.FrontendKey{Addr: addr, Protocol: source.TCP, Port: 30080, Kind: kind}, Outside: route, FromLocal: route}
			f.ServicePort.Name = name
			return &policy.Resolved{Key: source.Key{Name: name}, Frontends: []*policy.Frontend{f}}
		}
		st := &policy.State{Host: policy.Host{NodePortAddrs: []netip.Addr{node}}, Services: map[source.Key]*policy.Resolved{
			{Name: "address"}:   frontend("address", tt.address, node, policy.External),
			{Name: "node-port"}: frontend("node-port", tt.nodePort, netip.IPv4Unspecified(), policy.NodePort),
		}}
		s := newFrontendPairs(st).server(lvs.Key{Addr: node, Protocol: uint8(source.TCP), Port: 30080}, "wrr", map[*policy.Pool][]lvs.Destination{})
		if s == nil || s.name.Name != tt.want {
			t.Errorf("%s: server %+v, want that of %s", tt.what, s, tt.want)
		}
	}
}
