package trace

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/source"
)

func TestParseFilter(t *testing.T) {
	vip, client := netip.MustParseAddr("10.96.0.10"), netip.MustParsePrefix("203.0.113.9/32")
	vip6 := netip.MustParseAddr("fd00:96::10")
	for _, tt := range []struct {
		args []string
		want Filter
		err  string
	}{
		{nil, Filter{}, ""},
		{[]string{"any"}, Filter{}, ""},
		{[]string{"10.96.0.10"}, Filter{Destination: vip}, ""},
		{[]string{"::ffff:10.96.0.10"}, Filter{Destination: vip}, ""},
		{[]string{"203.0.113.9"}, Filter{Source: client}, ""}, // no address of a service
		{[]string{"203.0.113.9:80"}, Filter{Destination: client.Addr(), Port: 80}, ""},
		{[]string{"203.0.113.0/24"}, Filter{Source: netip.MustParsePrefix("203.0.113.0/24")}, ""},
		{[]string{"203.0.113.9", "any"}, Filter{Source: client}, ""},
		{[]string{"any", "203.0.113.9"}, Filter{Destination: client.Addr()}, ""},
		{[]string{"any:80/udp"}, Filter{Port: 80, Protocol: source.UDP}, ""},
		{[]string{"any/sctp"}, Filter{Protocol: source.SCTP}, ""},
		{[]string{"10.96.0.10/tcp"}, Filter{Destination: vip, Protocol: source.TCP}, ""},
		{[]string{"203.0.113.9", "10.96.0.10:443/tcp"}, Filter{client, vip, 443, source.TCP}, ""},
		{[]string{"fd00:96::10"}, Filter{Destination: vip6}, ""},
		{[]string{"[fd00:96::10]:80"}, Filter{Destination: vip6, Port: 80}, ""},
		{[]string{"any", "fd00:96::10:80"}, Filter{Destination: netip.MustParseAddr("fd00:96::10:80")}, ""},
		{[]string{"203.0.113.9/32", "[fd00:96::10]:80"}, Filter{}, "source 203.0.113.9/32 and destination [fd00:96::10]:80 are of two address families"},
		{[]string{"x", "any"}, Filter{}, `unknown source "x"; want an address, a prefix, or any`},
		{[]string{"any", "10.96.0.10:0"}, Filter{}, `unknown destination "10.96.0.10:0"; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or any`},
		{[]string{"10.96.0.10:80/tpc"}, Filter{}, `unknown protocol "tpc"; want tcp, udp or sctp`},
		{[]string{"\x1b[2J"}, Filter{}, `unknown destination "\x1b[2J"; want ADDRESS[:PORT][/PROTOCOL], [ADDRESS]:PORT for IPv6, or any`},
	} {
		got, err := ParseFilter(tt.args, func(a netip.Addr) bool { return a == vip || a == vip6 })
		if tt.err != "" {
			if err == nil || err.Error() != tt.err {
				t.Errorf("%q: error %v\nwant %s", tt.args, err, tt.err)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q: got %+v, error %v, want %+v", tt.args, got, err, tt.want)
		}
	}
}

func FuzzParseFilter(f *testing.F) {
	f.Add("203.0.113.9", "[fd00:96::10]:80/tcp")
	f.Fuzz(func(t *testing.T, src, dst string) {
		got, err := ParseFilter([]string{src, dst}, func(netip.Addr) bool { return false })
		if err == nil && got.Destination.Zone() != "" {
			t.Errorf("a zone: %+v", got)
		}
	})
}
