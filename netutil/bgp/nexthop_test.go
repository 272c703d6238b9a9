package bgp_test

import (
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// A listing is one of addresses, as a test wants it.
type listing struct {
	fail  atomic.Int32 // fail: so many calls
	empty atomic.Bool
}

func (l *listing) list(link netlink.Link, _ int) ([]netlink.Addr, error) {
	switch {
	case l.fail.Add(-1) >= 0:
		return nil, netlink.ErrDumpInterrupted
	case l.empty.Load():
		return nil, nil
	}
	_, network, err := net.ParseCIDR("2001:db8::/64")
	network.IP = net.ParseIP("2001:db8::1")
	return []netlink.Addr{{IPNet: network, LinkIndex: link.Attrs().Index}}, err
}

// withListing runs a speaker that lists addresses so, and returns the connection of its router.
func withListing(t *testing.T, l *listing, log *lines) (*bgp.Speaker, *conn) {
	t.Helper()
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	s.SetListAddrs(l.list)
	runs(t, s)
	set(t, s, route("2001:db8:5::1/128"))
	return s, r.establish()
}

// hears6 waits for an update of IPv6 routes, and returns what it announces and withdraws.
func (c *conn) hears6() (announced, withdrawn string) {
	c.t.Helper()
	for {
		u := c.update()
		if reach, ok := attribute[*packet.PathAttributeMpReachNLRI](u); ok {
			return reach.Value[0].NLRI.String(), ""
		}
		if un, ok := attribute[*packet.PathAttributeMpUnreachNLRI](u); ok && len(un.Value) > 0 {
			return "", un.Value[0].NLRI.String()
		}
	}
}

func (c *conn) expect6(announced, withdrawn string) {
	c.t.Helper()
	if a, w := c.hears6(); a != announced || w != withdrawn {
		c.t.Errorf("announced %q, withdrawn %q; want %q and %q", a, w, announced, withdrawn)
	}
}

// A list of addresses during which some changed is asked for again at once.
func TestNextHopIsListedAgain(t *testing.T) {
	var l listing
	var log lines
	l.fail.Store(2)
	_, c := withListing(t, &l, &log)
	c.expect6("2001:db8:5::1/128", "")
	if log.count("listing the addresses") > 0 {
		t.Error("the list that was interrupted is logged")
	}
}

// While addresses cannot be listed, the next hop of before stays. That there is none takes the routes back.
func TestNextHopStays(t *testing.T) {
	var l listing
	var log lines
	s, c := withListing(t, &l, &log)
	c.expect6("2001:db8:5::1/128", "")
	until(t, s, "established", established)
	l.fail.Store(1000)
	set(t, s, route("2001:db8:5::1/128"), route("2001:db8:5::2/128"))
	c.expect6("2001:db8:5::2/128", "")
	log.expect(t, "looking for the next hop of 127.0.0.1: listing the addresses of lo")
	l.empty.Store(true)
	l.fail.Store(0)
	set(t, s, route("2001:db8:5::1/128"))
	until(t, s, "none", func(st bgp.PeerState) bool { return strings.Contains(st.IPv6.Withheld, "no IPv6 address on lo") })
	if a, _ := c.hears6(); a != "" {
		t.Errorf("announced %q; want the withdrawal", a)
	}
}
