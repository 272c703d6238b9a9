package bgp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// config is that of a speaker that only connects.
func config(peers ...bgp.Peer) bgp.Config {
	return bgp.Config{
		AS: ourAS, RouterID: netip.MustParseAddr("192.0.2.1"), ListenPort: -1, Peers: peers,
		Log: slog.New(slog.DiscardHandler),
	}
}

// run starts a speaker, which the end of the test stops.
func run(t *testing.T, cfg bgp.Config) *bgp.Speaker {
	t.Helper()
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	runs(t, s)
	return s
}

// runs has a speaker run until the test ends.
func runs(t *testing.T, s *bgp.Speaker) {
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.Background()) }()
	t.Cleanup(func() {
		s.Stop(false)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func set(t *testing.T, s *bgp.Speaker, routes ...bgp.Route) {
	t.Helper()
	fatal.If(t, s.SetRoutes(routes))
}

func route(prefix string) bgp.Route { return bgp.Route{Prefix: netip.MustParsePrefix(prefix)} }

// until waits for a state of the first peer.
func until(t *testing.T, s *bgp.Speaker, what string, ok func(bgp.PeerState) bool) bgp.PeerState {
	t.Helper()
	return untilPeer(t, s, 0, what, ok)
}

func untilPeer(t *testing.T, s *bgp.Speaker, i int, what string, ok func(bgp.PeerState) bool) bgp.PeerState {
	t.Helper()
	var st bgp.PeerState
	pace.UntilOr(t, func() bool { st = s.State()[i]; return ok(st) }, func() string {
		return fmt.Sprintf("%s: still %+v", what, st)
	})
	return st
}

func established(st bgp.PeerState) bool { return st.State == bgp.Established }

// A router gets a route with the attributes of the peer, then the next one only; the same set says nothing.
func TestRoutesAreSentOnce(t *testing.T) {
	r := newRouter(t)
	p := r.peer()
	p.MED, p.Communities = 50, []bgp.Community{64512<<16 | 100}
	s := run(t, config(p))
	set(t, s, route("198.51.100.1/32"))
	c := r.establish()
	u := c.update()
	if len(u.NLRI) != 1 || u.NLRI[0].NLRI.String() != "198.51.100.1/32" {
		t.Fatalf("announced %v", u.NLRI)
	}
	if hop, ok := attribute[*packet.PathAttributeNextHop](u); !ok || hop.Value != loopback {
		t.Errorf("next hop %+v; want %v", hop, loopback)
	}
	if med, ok := attribute[*packet.PathAttributeMultiExitDisc](u); !ok || med.Value != 50 {
		t.Errorf("MED %+v; want 50", med)
	}
	if got, ok := attribute[*packet.PathAttributeCommunities](u); !ok || !slices.Equal(got.Value, []uint32{64512<<16 | 100}) {
		t.Errorf("communities %+v; want 64512:100", got)
	}
	if path, ok := attribute[*packet.PathAttributeAsPath](u); !ok || len(path.Value) != 1 || !slices.Equal(path.Value[0].GetAS(), []uint32{ourAS}) {
		t.Errorf("AS path %v; want our own", path)
	}
	if st := until(t, s, "one route", func(st bgp.PeerState) bool { return st.Announced() == 1 }); !strings.Contains(st.IPv6.Withheld, "no IPv6 address on lo") {
		t.Errorf("IPv6 is withheld for %q; want the missing address", st.IPv6.Withheld)
	}

	set(t, s, route("198.51.100.1/32"))
	set(t, s, route("198.51.100.1/32"), route("198.51.100.2/32"))
	if u := c.update(); len(u.NLRI) != 1 || u.NLRI[0].NLRI.String() != "198.51.100.2/32" || len(u.WithdrawnRoutes) != 0 {
		t.Errorf("the difference is %v, withdrawn %v", u.NLRI, u.WithdrawnRoutes)
	}
	set(t, s, route("198.51.100.2/32"))
	if u := c.update(); len(u.NLRI) != 0 || len(u.WithdrawnRoutes) != 1 || u.WithdrawnRoutes[0].NLRI.String() != "198.51.100.1/32" {
		t.Errorf("the difference is %v, withdrawn %v", u.NLRI, u.WithdrawnRoutes)
	}
}

// Routes with Shutdown are marked, and to a peer of our own AS they come with the
// lowest local preference, whatever the configured one.
func TestShutdownMarksRoutes(t *testing.T) {
	r := newRouter(t)
	r.as = ourAS
	p := r.peer()
	p.AS, p.LocalPreference = ourAS, 200
	s := run(t, config(p))
	set(t, s, route("198.51.100.1/32"))
	c := r.establish()
	if got, _ := attribute[*packet.PathAttributeLocalPref](c.update()); got == nil || got.Value != 200 {
		t.Errorf("local preference %+v; want 200", got)
	}
	set(t, s, bgp.Route{Prefix: netip.MustParsePrefix("198.51.100.1/32"), Shutdown: true})
	u := c.update()
	if got, ok := attribute[*packet.PathAttributeCommunities](u); !ok || !slices.Contains(got.Value, uint32(bgp.GracefulShutdown)) {
		t.Errorf("communities %+v; want 65535:0", got)
	}
	if got, _ := attribute[*packet.PathAttributeLocalPref](u); got == nil || got.Value != 0 {
		t.Errorf("local preference %+v; want 0", got)
	}
	set(t, s)
	if u := c.update(); len(u.WithdrawnRoutes) != 1 {
		t.Errorf("then %+v; want the withdrawal", u)
	}
}

// With graceful restart, nothing is opened before the first set; OPEN says that forwarding was preserved, routes come before
// End-of-RIB, the connection ends without a word, and a session that was only lost says the same.
func TestGracefulRestartPreservesRoutes(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.GracefulRestart = 100 * time.Second
	s := run(t, cfg)
	fatal.If(t, r.ln.(*net.TCPListener).SetDeadline(time.Now().Add(3*time.Second)))
	if c, err := r.ln.Accept(); err == nil {
		c.Close()
		t.Fatal("the session was opened before the first set")
	}
	set(t, s, route("198.51.100.1/32"))
	c := r.establish()
	preserved(t, c)
	announced, ends := 0, map[packet.Family]bool{}
	for range 3 {
		u := c.update()
		announced += len(u.NLRI)
		if ok, family := u.IsEndOfRib(); ok {
			ends[family] = true
		}
		if ends[packet.RF_IPv4_UC] && announced == 0 {
			t.Error("End-of-RIB came before the route")
		}
	}
	if announced != 1 || !ends[packet.RF_IPv4_UC] || !ends[packet.RF_IPv6_UC] {
		t.Errorf("%d routes, End-of-RIB of %v; want one, and both families", announced, ends)
	}
	c.c.Close()
	c = r.establish()
	preserved(t, c)
	until(t, s, "established again", established)
	s.Stop(true)
	for m := c.next(); m != nil; m = c.next() {
		if m.Header.Type == packet.BGP_MSG_NOTIFICATION {
			t.Errorf("the end was %+v; want no word", m.Body)
		}
	}
}

// preserved checks the graceful restart capability of OPEN.
func preserved(t *testing.T, c *conn) {
	t.Helper()
	gr := capability[*packet.CapGracefulRestart](c)
	if gr.Flags&0x8 == 0 || gr.Time != 100 || len(gr.Tuples) != 2 {
		t.Errorf("graceful restart capability %+v; want restarting, 100 s, two families", gr)
	}
	for _, f := range gr.Tuples {
		if f.Flags&0x80 == 0 {
			t.Errorf("forwarding of AFI %d is not preserved", f.AFI)
		}
	}
}

// Without graceful restart, peers are told to remove the routes.
func TestStopWithdrawsRoutes(t *testing.T) {
	r := newRouter(t)
	s := run(t, config(r.peer()))
	set(t, s)
	c := r.establish()
	until(t, s, "established", established)
	s.Stop(true)
	m := c.next()
	if m == nil || m.Header.Type != packet.BGP_MSG_NOTIFICATION {
		t.Fatalf("the end was %+v; want a notification", m)
	}
	if n := m.Body.(*packet.BGPNotification); n.ErrorCode != packet.BGP_ERROR_CEASE {
		t.Errorf("notification %+v; want cease", n)
	}
	if st := s.State()[0]; st.State != bgp.Idle {
		t.Errorf("after the end the state is %v", st.State)
	}
}

// A router that never agrees holds up changes of routes, and not the end.
func TestStopWhileOpening(t *testing.T) {
	first, second := newRouter(t), newRouterAt(t, netip.MustParseAddr("127.0.0.2"))
	s, err := bgp.New(config(first.peer(), second.peer()))
	fatal.If(t, err)
	s.SetSettle(time.Minute)
	runs(t, s)
	set(t, s, route("198.51.100.1/32"))
	c := first.establish()
	second.accept() // and no keepalive
	until(t, s, "established", established)
	untilPeer(t, s, 1, "about to be", func(st bgp.PeerState) bool { return st.State == bgp.OpenConfirm })
	set(t, s)
	time.Sleep(100 * time.Millisecond) // it waits now
	began := time.Now()
	s.Stop(false)
	if took := time.Since(began); took > pace.Scale(30*time.Second) {
		t.Errorf("the end took %v", took)
	}
	if !c.closed() {
		t.Error("the other router is not told")
	}
}

// What peers send is counted and goes nowhere.
func TestReceivedRoutesAreRefused(t *testing.T) {
	r, other := newRouter(t), newRouterAt(t, netip.MustParseAddr("127.0.0.2"))
	second := other.peer()
	other.as, second.AS = routerAS+1, routerAS+1 // a route is never sent to an AS, or a router ID, that it comes from
	s := run(t, config(r.peer(), second))
	set(t, s)
	c, heard := r.establish(), other.establish()
	until(t, s, "established", established)
	c.write(announcement(t, "203.0.113.0/24"))
	st := until(t, s, "one refused", func(st bgp.PeerState) bool { return st.Refused() == 1 })
	if st.IPv4.Refused != 1 || st.Announced() != 0 {
		t.Errorf("%+v; want one refused IPv4 route and none announced", st)
	}
	set(t, s, route("198.51.100.1/32"))
	if u := heard.update(); len(u.NLRI) != 1 || u.NLRI[0].NLRI.String() != "198.51.100.1/32" {
		t.Errorf("the other peer heard %v; want our route only", u.NLRI)
	}
}

func announcement(t *testing.T, prefix string) *packet.BGPMessage {
	t.Helper()
	nlri, err := packet.NewIPAddrPrefix(netip.MustParsePrefix(prefix))
	fatal.If(t, err)
	return update(t, []packet.PathNLRI{{NLRI: nlri}})
}

// update announces routes of a router.
func update(t *testing.T, list []packet.PathNLRI) *packet.BGPMessage {
	t.Helper()
	hop, err := packet.NewPathAttributeNextHop(netip.MustParseAddr("203.0.113.254"))
	fatal.If(t, err)
	attrs := []packet.PathAttributeInterface{
		packet.NewPathAttributeOrigin(0), hop,
		packet.NewPathAttributeAsPath([]packet.AsPathParamInterface{packet.NewAs4PathParam(2, []uint32{routerAS})}),
	}
	return packet.NewBGPUpdateMessage(nil, attrs, list)
}

// faults are what routers do, and what the state says then.
var faults = []struct {
	name, want string
	do         func(*router)
}{
	{"nothing listens", "connection refused by 127.0.0.", func(r *router) { r.ln.Close() }},
	{"wrong AS here", "wrong AS: the peer is not in AS 64500", func(r *router) { r.as = 64501; r.accept() }},
	{"wrong AS there", "the peer refused our OPEN: wrong AS", func(r *router) {
		c := r.accept()
		c.write(packet.NewBGPNotificationMessage(packet.BGP_ERROR_OPEN_MESSAGE_ERROR, packet.BGP_ERROR_SUB_BAD_PEER_AS, nil))
		c.c.Close()
	}},
	{"unknown to the peer", "the peer refused our OPEN", func(r *router) {
		c, err := r.ln.Accept()
		if err != nil {
			r.t.Error(err)
			return
		}
		c.Close()
	}},
	{"closed by the peer", `closed the session: 6/2, cease, administrative shutdown, with the words "maintenance"`, func(r *router) {
		c := r.establish()
		c.update()
		c.write(packet.NewBGPNotificationMessage(packet.BGP_ERROR_CEASE, packet.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, []byte("\x0bmaintenance")))
	}},
	{"lost", "connection lost", func(r *router) { c := r.establish(); c.update(); c.c.Close() }},
	{"hold timer", "hold timer expired", func(r *router) { r.establish().update() }},
}

// Why there is no session stands in the state, in words: one speaker, and a router for each reason.
func TestStateNamesWhyThereIsNoSession(t *testing.T) {
	routers := make([]*router, len(faults))
	peers := make([]bgp.Peer, len(faults))
	for i := range faults {
		routers[i] = newRouterAt(t, netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + i)}))
		peers[i] = routers[i].peer()
	}
	cfg := config(peers...)
	cfg.HoldTime = 3 * time.Second
	s := run(t, cfg)
	set(t, s, route("198.51.100.1/32"))
	t.Run("all", func(t *testing.T) {
		for i, tt := range faults {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				r := *routers[i]
				r.t = t
				tt.do(&r)
				st := untilPeer(t, s, i, tt.want, func(st bgp.PeerState) bool { return strings.Contains(st.LastError, tt.want) })
				if st.LastErrorAt.IsZero() {
					t.Error("the error has no time")
				}
			})
		}
	})
}

// A port that is taken is the error of Run, and nothing is left.
func TestTakenPortEndsRun(t *testing.T) {
	ln, err := net.Listen("tcp4", ":0")
	fatal.If(t, err)
	defer ln.Close()
	cfg := config(bgp.Peer{Address: loopback, AS: routerAS})
	cfg.ListenPort = ln.Addr().(*net.TCPAddr).Port
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v; want that the port is taken", err)
	}
	s.Stop(true)
}

// An error that stays is logged once, another one and the end of it too.
func TestTroubleIsLoggedOnce(t *testing.T) {
	var out strings.Builder
	cfg := config(bgp.Peer{Address: loopback, AS: routerAS})
	cfg.Log = slog.New(slog.NewTextHandler(&out, nil))
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	one, other := errors.New("one"), errors.New("other")
	for _, err := range []error{nil, one, one, one, other, nil, nil, one} {
		s.LogTrouble(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		_, line, _ = strings.Cut(line, "level=")
		level, _, _ := strings.Cut(line, " ")
		_, line, _ = strings.Cut(line, "err=")
		word, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		got = append(got, level+" "+word)
	}
	if want := []string{"ERROR one", "ERROR other", "INFO other", "ERROR one"}; !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q", got, want)
	}
}

// OnChange hears of the newest state, however slow it is, and the end of the context is the end of all.
func TestContextEndsTheSpeaker(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	got := make(chan bgp.PeerState)
	ctx, cancel := context.WithCancel(t.Context())
	cfg.OnChange = func(st bgp.PeerState) {
		select {
		case got <- st:
		case <-ctx.Done():
		}
	}
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	set(t, s)
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	r.establish()
	until(t, s, "established", established)
	for st := (bgp.PeerState{}); st.State != bgp.Established || st.Address != loopback; {
		select {
		case st = <-got:
		case <-time.After(wait()):
			t.Fatal("OnChange has not heard of the session")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.Stop(false)
}

// A router that accepts the connection and says nothing is named as such, and not once it has answered.
func TestSilentRouterIsNamed(t *testing.T) {
	r := newRouter(t)
	s, err := bgp.New(config(r.peer()))
	fatal.If(t, err)
	s.SetOpenPatience(50 * time.Millisecond)
	runs(t, s)
	set(t, s)
	c := r.acceptSilently()
	const silent = "accepts connections, and has not answered our OPEN"
	until(t, s, "silent", func(st bgp.PeerState) bool { return strings.Contains(st.LastError, silent) && !st.LastErrorAt.IsZero() })
	c.write(r.ourOpen())
	c.write(packet.NewBGPKeepAliveMessage())
	if st := until(t, s, "established", established); st.LastError != "" {
		t.Errorf("after it has answered: %q", st.LastError)
	}
}
