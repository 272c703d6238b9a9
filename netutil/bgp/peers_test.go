package bgp_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// hears waits until c is told of a route, and returns the message.
func (c *conn) hears(prefix string) *packet.BGPUpdate {
	c.t.Helper()
	for {
		u := c.update()
		for _, n := range u.NLRI {
			if n.NLRI.String() == prefix {
				return u
			}
		}
	}
}

// closed waits for the end of a connection, and reports whether a notification came before.
func (c *conn) closed() (told bool) {
	c.t.Helper()
	for m := c.next(); m != nil; m = c.next() {
		told = told || m.Header.Type == packet.BGP_MSG_NOTIFICATION
	}
	return told
}

func setPeers(t *testing.T, s *bgp.Speaker, want bool, peers ...bgp.Peer) {
	t.Helper()
	if done, err := s.SetPeers(peers); err != nil || done != want {
		t.Fatalf("SetPeers: %v, %v; want %v", done, err, want)
	}
}

// Peers come, change and go while the session with another goes on.
func TestSetPeers(t *testing.T) {
	first, second := newRouter(t), newRouterAt(t, netip.MustParseAddr("127.0.0.2"))
	s := run(t, config(first.peer()))
	set(t, s, route("198.51.100.1/32"))
	c1 := first.establish()
	c1.hears("198.51.100.1/32")

	setPeers(t, s, true, first.peer(), second.peer())
	c2 := second.establish()
	c2.hears("198.51.100.1/32")
	until(t, s, "the first one stays", established)
	untilPeer(t, s, 1, "and the second one is there", established)

	marked := second.peer()
	marked.MED, marked.Communities = 50, []bgp.Community{64512<<16 | 1}
	setPeers(t, s, true, first.peer(), marked)
	u := c2.hears("198.51.100.1/32")
	for med, _ := attribute[*packet.PathAttributeMultiExitDisc](u); med == nil; med, _ = attribute[*packet.PathAttributeMultiExitDisc](u) {
		u = c2.hears("198.51.100.1/32") // once more with what it had, before
	}
	set(t, s, route("198.51.100.1/32"), route("198.51.100.2/32"))
	c1.hears("198.51.100.2/32") // by the connection of before

	slower := marked
	slower.HoldTime = time.Minute
	setPeers(t, s, true, first.peer(), slower)
	if !c2.closed() {
		t.Error("the session that needs another one ended without a word")
	}
	c2 = second.establish()
	if c2.open.HoldTime != 60 {
		t.Errorf("hold time %d; want 60", c2.open.HoldTime)
	}
	c2.hears("198.51.100.2/32")

	setPeers(t, s, true, slower)
	if !c1.closed() {
		t.Error("the session with a peer that is gone ended without a word")
	}
	onlyTheSecond := func() bool {
		st := s.State()
		return len(st) == 1 && st[0].Address == slower.Address && established(st[0])
	}
	// The connection ends before the peer is gone.
	pace.UntilOr(t, onlyTheSecond, func() string { return fmt.Sprintf("peers %+v; want the second one", s.State()) })
	set(t, s, route("198.51.100.3/32"))
	c2.hears("198.51.100.3/32")
}

// What would cost a router our routes, which another speaker keeps, is not done.
func TestSetPeersKeepsRoutes(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.GracefulRestart = time.Minute
	s := run(t, cfg)
	set(t, s, route("198.51.100.1/32"))
	other := r.peer()
	other.HoldTime = time.Minute
	setPeers(t, s, true, other) // there is no session yet
	c := r.establish()
	c.hears("198.51.100.1/32")
	until(t, s, "established", established)
	setPeers(t, s, false, r.peer())
	if _, err := s.SetPeers(nil); err == nil {
		t.Error("no peers are no error")
	}
	set(t, s, route("198.51.100.2/32"))
	c.hears("198.51.100.2/32")
	if c.open.HoldTime != 60 {
		t.Errorf("hold time %d; want that of the change before the session", c.open.HoldTime)
	}
}

// The key of a password stays at the socket that listens, so a peer that has none any more needs another speaker.
func TestSetPeersWithoutPassword(t *testing.T) {
	signed := newRouter(t).peer()
	signed.Password = "s3cret"
	s, err := bgp.New(config(signed))
	fatal.If(t, err)
	other := signed
	other.Password = "other"
	setPeers(t, s, true, other)
	other.Password = ""
	setPeers(t, s, false, other)
}

// So does one that was left out meanwhile: the key stays also then.
func TestSetPeersWithoutPasswordLater(t *testing.T) {
	signed := newRouter(t).peer()
	signed.Password = "s3cret"
	other := newRouterAt(t, netip.MustParseAddr("127.0.0.2")).peer()
	s := run(t, config(other))
	set(t, s)
	setPeers(t, s, true, other, signed)
	untilPeers(t, s, 2)
	setPeers(t, s, true, other)
	untilPeers(t, s, 1)
	unsigned := signed
	unsigned.Password = ""
	setPeers(t, s, false, other, unsigned)
	setPeers(t, s, true, other, signed)
}

// untilPeers waits until a speaker has as many peers.
func untilPeers(t *testing.T, s *bgp.Speaker, n int) {
	t.Helper()
	pace.UntilOr(t, func() bool { return len(s.State()) == n }, func() string {
		return fmt.Sprintf("peers %+v; want %d", s.State(), n)
	})
}
