//go:build netns

package conntrack_test

import (
	"net"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/netutil/conntrack"
)

func TestFind(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
ip6tables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination [::1]:5353
`)
	tcp, err := net.Listen("tcp", "127.0.0.1:5353")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, other, six := dial(t, "udp", "10.96.0.1:53"), dial(t, "tcp", "10.96.0.1:53"), dial(t, "udp6", "[::1]:53")
	dial(t, "udp", "10.96.0.2:53")
	local, local6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	at := netip.MustParseAddrPort
	tests := []struct {
		protocol uint8
		src      netip.Addr
		dst      netip.AddrPort
		want     []conntrack.Found
	}{
		{17, local, at("10.96.0.1:53"), []conntrack.Found{{udp, at("10.96.0.1:53"), at("127.0.0.1:5353"), udp, false}}},
		{6, local, at("10.96.0.1:53"), []conntrack.Found{{other, at("10.96.0.1:53"), at("127.0.0.1:5353"), other, true}}},
		{17, local6, at("[::1]:53"), []conntrack.Found{{six, at("[::1]:53"), at("[::1]:5353"), six, false}}},
		{17, netip.MustParseAddr("127.0.0.2"), at("10.96.0.1:53"), nil},
		{17, local, at("10.96.0.1:54"), nil},
	}
	for _, tt := range tests {
		got, err := conntrack.Find(t.Context(), tt.protocol, tt.src, tt.dst, 4)
		if err != nil || len(got) != len(tt.want) || len(got) == 1 && got[0] != tt.want[0] {
			t.Errorf("Find(%d, %s, %s) = %+v, %v; want %+v", tt.protocol, tt.src, tt.dst, got, err, tt.want)
		}
	}
	for range 3 {
		dial(t, "udp", "10.96.0.1:53")
	}
	if got, err := conntrack.Find(t.Context(), 17, local, at("10.96.0.1:53"), 2); len(got) != 2 || err != nil {
		t.Errorf("with a limit of 2: %+v, %v", got, err)
	}
}
