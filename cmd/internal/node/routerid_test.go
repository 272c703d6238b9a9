package node

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// The router ID is this host's own: an address of lo may be a service's, on every host the same.
func TestRouterID(t *testing.T) {
	lo, link, nodePort := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	six := netip.MustParseAddr("2001:db8::1")
	all := []netip.Addr{lo, link, nodePort, six}
	tests := []struct {
		name string
		node policy.Node
		want netip.Addr
	}{
		{"on lo", policy.Node{Addrs: all, LoopbackAddrs: []netip.Addr{lo}}, link},
		{"of node ports", policy.Node{Addrs: all, LoopbackAddrs: []netip.Addr{lo}, NodePortAddrs: []netip.Addr{nodePort}}, nodePort},
		{"IPv6 alone", policy.Node{Addrs: []netip.Addr{six}}, netip.Addr{}},
	}
	for _, tt := range tests {
		h := &Host{node: &tt.node}
		if got := h.RouterID(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
