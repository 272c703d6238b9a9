package bgp_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*bgp.Config, *bgp.Peer)
		want   string // the message, or a part of it; "": valid
	}{
		{"as it is", func(*bgp.Config, *bgp.Peer) {}, ""},
		{"AS 0", func(c *bgp.Config, _ *bgp.Peer) { c.AS = 0 }, "AS 0: want 1 to 4294967294, and neither 23456 nor 65535, which are reserved"},
		{"AS_TRANS", func(_ *bgp.Config, p *bgp.Peer) { p.AS = 23456 }, "peer 127.0.0.1: AS 23456: want 1"},
		{"router ID", func(c *bgp.Config, _ *bgp.Peer) { c.RouterID = netip.MustParseAddr("::1") }, "router ID ::1: want an IPv4 address such as 192.0.2.1"},
		{"listen port", func(c *bgp.Config, _ *bgp.Peer) { c.ListenPort = -2 }, "listen port -2: want 1 to 65535, or -1 for none"},
		{"hold time", func(c *bgp.Config, _ *bgp.Peer) { c.HoldTime = 2 * time.Second }, "hold time 2s: want 3s to 65535s, in whole seconds"},
		{"hold time of a peer", func(_ *bgp.Config, p *bgp.Peer) { p.HoldTime = 3500 * time.Millisecond }, "peer 127.0.0.1: hold time 3.5s"},
		{"graceful restart", func(c *bgp.Config, _ *bgp.Peer) { c.GracefulRestart = 2 * time.Hour }, "graceful restart 2h0m0s: want 1s to 4095s"},
		{"no peers", func(c *bgp.Config, _ *bgp.Peer) { c.Peers = c.Peers[:0] }, "no peers"},
		{"twice", func(c *bgp.Config, _ *bgp.Peer) { c.Peers = append(c.Peers, c.Peers[0]) }, "peer 127.0.0.1 is there twice"},
		{"no address", func(_ *bgp.Config, p *bgp.Peer) { p.Address = netip.Addr{} }, "want the address of a router"},
		{"link-local", func(_ *bgp.Config, p *bgp.Peer) { p.Address = netip.MustParseAddr("fe80::1%eth0") }, "a link-local address is not supported"},
		{"source", func(_ *bgp.Config, p *bgp.Peer) { p.Source = netip.MustParseAddr("::1") }, "source ::1 is of the other family"},
		{"multihop", func(_ *bgp.Config, p *bgp.Peer) { p.Multihop = 256 }, "multihop 256: want 2 to 255"},
		{"multihop inside", func(_ *bgp.Config, p *bgp.Peer) { p.Multihop, p.AS = 3, ourAS }, "multihop is for peers of another AS"},
		{"both TTLs", func(_ *bgp.Config, p *bgp.Peer) { p.Multihop, p.TTLSecurity = 3, true }, "exclude each other"},
		{"password", func(_ *bgp.Config, p *bgp.Peer) { p.Password = strings.Repeat("x", 81) }, "the password has 81 bytes or a NUL"},
		{"communities", func(_ *bgp.Config, p *bgp.Peer) { p.Communities = make([]bgp.Community, 101) }, "101 communities; want at most 100"},
		{"local preference", func(_ *bgp.Config, p *bgp.Peer) { p.LocalPreference = 1 }, "a local preference is for peers of our own AS 64512 only"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config(bgp.Peer{Address: loopback, AS: routerAS})
			tt.change(&c, &c.Peers[0])
			err := c.Validate()
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v; want %q", err, tt.want)
			}
		})
	}
}

func TestParseCommunity(t *testing.T) {
	for in, want := range map[string]string{
		"64512:100": "64512:100", "graceful-shutdown": "65535:0", "no-export": "65535:65281",
		"64512": "", "65536:1": "", "1:-1": "", "nothing": "", "1:2:3": "",
	} {
		c, err := bgp.ParseCommunity(in)
		if (want == "") != (err != nil) || err == nil && c.String() != want {
			t.Errorf("%q is %v, %v; want %q", in, c, err, want)
		}
	}
}

func TestSetRoutesFaults(t *testing.T) {
	s, err := bgp.New(config(bgp.Peer{Address: loopback, AS: routerAS}))
	fatal.If(t, err)
	for want, routes := range map[string][]bgp.Route{
		"without host bits":                   {route("192.0.2.1/24")},
		"not an address that a router":        {route("127.0.0.1/32")},
		"route 192.0.2.1/32 is there twice":   {route("192.0.2.1/32"), {Prefix: netip.MustParsePrefix("192.0.2.1/32"), Shutdown: true}},
		"route invalid Prefix: want a prefix": {{}},
	} {
		if err := s.SetRoutes(routes); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %q", err, want)
		}
	}
}

// Routers are pointed to an address of a network, neither to a service address nor to one that may go.
func TestNextHopAddress(t *testing.T) {
	addr := func(s string, flags int, scope int) netlink.Addr {
		a, err := netlink.ParseAddr(s)
		fatal.If(t, err)
		a.Flags, a.Scope = flags, scope
		return *a
	}
	list := []netlink.Addr{
		addr("2001:db8::1/128", 0, unix.RT_SCOPE_UNIVERSE), addr("fe80::1/64", 0, unix.RT_SCOPE_LINK),
		addr("2001:db8::2/64", unix.IFA_F_TEMPORARY, unix.RT_SCOPE_UNIVERSE), addr("2001:db8::3/64", unix.IFA_F_TENTATIVE, unix.RT_SCOPE_UNIVERSE),
		addr("2001:db8::5/64", 0, unix.RT_SCOPE_UNIVERSE), addr("2001:db8::4/64", 0, unix.RT_SCOPE_UNIVERSE),
	}
	if got, ok := bgp.Best(list); !ok || got != netip.MustParseAddr("2001:db8::4") {
		t.Errorf("got %v; want 2001:db8::4", got)
	}
	if got, ok := bgp.Best(list[1:2]); ok {
		t.Errorf("got %v; want none", got)
	}
}
