//go:build netns

package conntrack_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// Connections that a peer still has are open; those that both have closed, that were never
// answered, and that go where they were sent to, are not.
func TestOpenIsWhatAPeerStillHas(t *testing.T) {
	namespace(t, `ip link set lo up
ip addr add 127.0.0.2/32 dev lo
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
ip -6 route add fd00:96::/64 dev lo
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 80 -j DNAT --to-destination 127.0.0.1:8080
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p tcp --dport 81 -j DNAT --to-destination 127.0.0.2:8080
iptables -w -t nat -A OUTPUT -d 10.96.0.1 -p udp --dport 53 -j DNAT --to-destination 127.0.0.1:53
ip6tables -w -t nat -A OUTPUT -d fd00:96::1 -p tcp --dport 80 -j DNAT --to-destination [::1]:8080
`)
	accepted := make(chan net.Conn, 10)
	for _, at := range []string{"127.0.0.1:8080", "127.0.0.2:8080", "[::1]:8080"} {
		l, err := net.Listen("tcp", at)
		fatal.If(t, err)
		defer l.Close()
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				accepted <- c
			}
		}()
	}
	connect := func(at string) (here, there net.Conn) {
		c, err := net.Dial("tcp", at)
		fatal.If(t, err)
		there = <-accepted
		t.Cleanup(func() { c.Close(); there.Close() })
		return c, there
	}
	half, _ := connect("10.96.0.1:80")
	over, overThere := connect("10.96.0.1:80")
	for _, c := range []net.Conn{half, overThere, over} {
		fatal.If(t, c.Close())
	}
	connect("10.96.0.1:80")
	connect("10.96.0.1:81")
	connect("[fd00:96::1]:80")
	connect("127.0.0.1:8080")
	dial(t, "udp", "10.96.0.1:53") // nobody answers
	const one, two, six = "6 10.96.0.1:80 127.0.0.1:8080", "6 10.96.0.1:81 127.0.0.2:8080", "6 [fd00:96::1]:80 [::1]:8080"
	for _, tt := range []struct {
		ipv6 bool
		to   string // empty: anywhere
		want []string
	}{
		{false, "127.0.0.1", []string{one, one}}, // one of them half closed
		{false, "127.0.0.2", []string{two}},
		{false, "127.0.0.3", nil},
		{false, "", []string{one, one, two}},
		{true, "::1", []string{six}},
		{true, "::2", nil},
		{true, "", []string{six}},
	} {
		var to netip.Addr
		if tt.to != "" {
			to = netip.MustParseAddr(tt.to)
		}
		var got []string
		err := conntrack.List(t.Context(), tt.ipv6, conntrack.Filter{Reply: netip.AddrPortFrom(to, 0)}, func(c *conntrack.Connection) error {
			if c.Replied && !c.Ended && c.Dst != c.Reply {
				got = append(got, fmt.Sprint(c.Protocol, " ", c.Dst, " ", c.Reply))
			}
			return nil
		})
		if slices.Sort(got); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("to %q: %q, error %v, want %q", tt.to, got, err, tt.want)
		}
	}
}
