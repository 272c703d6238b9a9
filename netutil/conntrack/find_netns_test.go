//go:build netns

package conntrack_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

func TestListByClient(t *testing.T) {
	namespace(t, `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 53 -j DNAT --to-destination 127.0.0.1:5353
ip6tables -w -t nat -A OUTPUT -p udp --dport 53 -j DNAT --to-destination [::1]:5353
`)
	tcp, err := net.Listen("tcp", "127.0.0.1:5353")
	fatal.If(t, err)
	defer tcp.Close()
	udp, other, six := dial(t, "udp", "10.96.0.1:53"), dial(t, "tcp", "10.96.0.1:53"), dial(t, "udp6", "[::1]:53")
	dial(t, "udp", "10.96.0.2:53")
	local, local6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	at := netip.MustParseAddrPort
	tests := []struct {
		protocol uint8
		src      netip.Addr
		dst      netip.AddrPort
		want     []conntrack.Connection
	}{
		{17, local, at("10.96.0.1:53"), []conntrack.Connection{{Protocol: 17, Src: udp, Dst: at("10.96.0.1:53"), Reply: at("127.0.0.1:5353"), ReplyTo: udp, Translated: true}}},
		{6, local, at("10.96.0.1:53"), []conntrack.Connection{{Protocol: 6, Src: other, Dst: at("10.96.0.1:53"), Reply: at("127.0.0.1:5353"), ReplyTo: other, Translated: true, Replied: true, Established: true}}},
		{17, local6, at("[::1]:53"), []conntrack.Connection{{Protocol: 17, Src: six, Dst: at("[::1]:53"), Reply: at("[::1]:5353"), ReplyTo: six, Translated: true}}},
		{17, netip.MustParseAddr("127.0.0.2"), at("10.96.0.1:53"), nil},
		{17, local, at("10.96.0.1:54"), nil},
	}
	for _, tt := range tests {
		var got []conntrack.Connection
		f := conntrack.Filter{Protocol: tt.protocol, Src: netip.AddrPortFrom(tt.src, 0), Dst: tt.dst}
		err := conntrack.List(t.Context(), tt.dst.Addr().Is6(), f, func(c *conntrack.Connection) error { got = append(got, *c); return nil })
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %+v, %v; want %+v", f, got, err, tt.want)
		}
	}
	enough := errors.New("enough")
	if err := conntrack.List(t.Context(), false, conntrack.Filter{}, func(*conntrack.Connection) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("a listing that is ended returns %v", err)
	}
}
