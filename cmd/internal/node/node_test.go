package node_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

func addr(ip, ifname string, scope links.Scope, flags string) links.Addr {
	has := func(b byte) bool {
		for i := range len(flags) {
			if flags[i] == b {
				return true
			}
		}
		return false
	}
	return links.Addr{
		Addr: netip.MustParseAddr(ip), Interface: ifname, Scope: scope,
		Up: has('u'), Loopback: has('l'), Primary: has('p'),
	}
}

var host = []links.Addr{
	addr("127.0.0.1", "lo", links.Host, "ul"),
	addr("::1", "lo", links.Host, "ul"),
	addr("203.0.113.9", "lo", links.Global, "ul"),
	addr("192.0.2.10", "eth0", links.Global, "up"),
	addr("2001:db8::10", "eth0", links.Global, "up"),
	addr("fe80::1", "eth0", links.Link, "u"),
	addr("10.0.0.1", "eth1", links.Global, "u"),
	addr("10.0.0.1", "eth2", links.Global, "u"),
	addr("169.254.1.1", "eth1", links.Global, "u"),
	addr("10.9.0.1", "eth3", links.Global, ""),
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestBuildAddresses(t *testing.T) {
	tests := []struct {
		name  string
		ports []string
		want  []netip.Addr
	}{
		{"primary", []string{"primary"}, addrs("192.0.2.10", "2001:db8::10")},
		{"all", []string{"all"}, addrs("10.0.0.1", "192.0.2.10", "203.0.113.9", "2001:db8::10")},
		{"cidrs", []string{"10.0.0.0/8", "2001:db8::/32"}, addrs("10.0.0.1", "2001:db8::10")},
		{"cidr and primary", []string{"203.0.113.0/24", "primary"}, addrs("192.0.2.10", "203.0.113.9", "2001:db8::10")},
		{"everything there is", []string{"0.0.0.0/0"}, addrs("10.0.0.1", "192.0.2.10", "203.0.113.9")},
		{"none", nil, nil},
	}
	all := addrs("10.0.0.1", "10.9.0.1", "192.0.2.10", "203.0.113.9", "2001:db8::10")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := node.Build(configs.Settings{NodePortAddresses: tt.ports}, host)
			byValue := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			if diff := cmp.Diff(tt.want, n.NodePortAddrs, byValue); diff != "" {
				t.Errorf("NodePortAddrs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(all, n.Addrs, byValue); diff != "" {
				t.Errorf("Addrs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBuildSettings(t *testing.T) {
	cidr := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	vips := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	for mode, want := range map[string]source.Masquerading{
		"auto": source.MasqueradeAuto, "all": source.MasqueradeAll, "never": source.MasqueradeNever,
	} {
		got := node.Build(configs.Settings{
			NodeName: "n", Zone: "z", LocalhostNodePorts: true, LocalCIDRs: cidr,
			LocalInterfaces: []string{"cni*"}, Masquerade: mode, MasqueradeBit: 15, ServiceCIDRs: vips,
		}, nil)
		wanted := &policy.Node{
			Name: "n", Zone: "z", LocalhostNodePorts: true, LocalCIDRs: cidr,
			LocalInterfaces: []string{"cni*"}, Masquerade: want, MarkBit: 15, ServiceCIDRs: vips,
		}
		if !got.Equal(wanted) {
			t.Errorf("Build with masquerade %q\n got: %+v\nwant: %+v", mode, got, wanted)
		}
	}
}

func TestReservedPortOfAddress(t *testing.T) {
	tests := []struct {
		address string
		want    string // empty: none
	}{
		{"127.0.0.1:10349", "127.0.0.1:10349"},
		{"[::]:80", "[::]:80"},
		{":80", "0.0.0.0:80"},
		{"localhost:80", "0.0.0.0:80"},
		{"", ""},
		{"127.0.0.1:0", ""},
	}
	for _, tt := range tests {
		var got string
		list := node.Reserved(configs.Settings{HTTPAddress: tt.address, StatusAddress: configs.Auto})
		if len(list) == 1 {
			got = list[0].String()
		}
		if got != tt.want {
			t.Errorf("Reserved(%q) = %q, want %q", tt.address, got, tt.want)
		}
	}
}

// The port for routers is reserved where there are any that may connect to it.
func TestReservedForRouters(t *testing.T) {
	peers := []configs.BGPPeer{{Address: netip.MustParseAddr("192.0.2.254"), AS: 64500}}
	for _, tt := range []struct {
		bgp  configs.BGP
		want string
	}{
		{configs.BGP{AS: 64512, Port: 179, Peers: peers}, "[[::]:179]"},
		{configs.BGP{AS: 64512, Peers: peers}, "[]"},
		{configs.BGP{AS: 64512, Port: 179}, "[]"},
		{configs.BGP{Port: 179, Peers: peers}, "[]"},
	} {
		if got := fmt.Sprint(node.Reserved(configs.Settings{BGP: tt.bgp})); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.bgp, got, tt.want)
		}
	}
}

// An address is one of lo where no other interface has it too.
func TestBuildLoopbackAddresses(t *testing.T) {
	both := append(slices.Clone(host), addr("203.0.113.8", "eth1", links.Global, "u"), addr("203.0.113.8", "lo", links.Global, "ul"))
	if got, want := node.Build(configs.Settings{}, both).LoopbackAddrs, addrs("203.0.113.9"); !slices.Equal(got, want) {
		t.Errorf("LoopbackAddrs = %v, want %v", got, want)
	}
}
