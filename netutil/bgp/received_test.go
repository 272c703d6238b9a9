package bgp_test

import (
	"log/slog"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/bgp"
)

// lines is a log that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// expect waits for a line.
func (l *lines) expect(t *testing.T, part string) {
	t.Helper()
	pace.Until(t, "logged: "+part, func() bool { return l.count(part) > 0 })
}

// A router that sends many routes keeps its session, takes a known share of memory for each, and is told of.
func TestManyReceived(t *testing.T) {
	r := newRouter(t)
	var log lines
	cfg := config(r.peer())
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := run(t, cfg)
	set(t, s)
	c := r.establish()
	until(t, s, "established", established)
	before := heap()
	const each = 200
	for i := 0; i < bgp.ManyReceived; i += each {
		var list []packet.PathNLRI
		for j := i; j < i+each; j++ {
			list = append(list, hostRoute(t, j))
		}
		c.write(update(t, list))
	}
	all := until(t, s, "all routes", func(st bgp.PeerState) bool { return st.Refused() == bgp.ManyReceived })
	if all.State != bgp.Established || !strings.Contains(all.Notice, "sends many routes") {
		t.Errorf("%+v; want a session, and a notice", all)
	}
	if brief := s.Brief()[0]; brief.State != bgp.Established || brief.Refused() != 0 || brief.IPv6.Withheld != all.IPv6.Withheld {
		t.Errorf("in short: %+v", brief)
	}
	if took := (int64(heap()) - int64(before)) / bgp.ManyReceived; took > 1500 {
		t.Errorf("a route takes %d bytes; want 550 at most, and here no more than 1500", took)
	}
	set(t, s, route("198.51.100.1/32")) // and so it looks
	log.expect(t, "sends many routes")
	set(t, s, route("198.51.100.1/32"), route("198.51.100.2/32"))
	until(t, s, "looked once more", func(st bgp.PeerState) bool { return st.Announced() == 2 })
	set(t, s, route("198.51.100.1/32"))
	until(t, s, "and again", func(st bgp.PeerState) bool { return st.Announced() == 1 })
	withdrawn := packet.NewBGPUpdateMessage([]packet.PathNLRI{hostRoute(t, 0)}, nil, nil)
	c.write(withdrawn)
	if st := until(t, s, "one fewer", func(st bgp.PeerState) bool { return st.Refused() < bgp.ManyReceived }); st.Notice != "" {
		t.Errorf("with one fewer: %q", st.Notice)
	}
	set(t, s)
	log.expect(t, "fewer than 10000 routes again")
	if n := log.count("sends many routes"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
}

// heap returns the bytes that are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func hostRoute(t *testing.T, i int) packet.PathNLRI {
	t.Helper()
	nlri, err := packet.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
	fatal.If(t, err)
	return packet.PathNLRI{NLRI: nlri}
}

// Of a route that is refused no attribute is kept, however large.
func TestLargeAttributesAreNotKept(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.HoldTime = time.Hour // this router sends no keepalives
	s := run(t, cfg)
	set(t, s)
	c := r.establish()
	until(t, s, "established", established)
	before := heap()
	const routes = 2000
	for i := range routes {
		m := update(t, []packet.PathNLRI{hostRoute(t, i)})
		u := m.Body.(*packet.BGPUpdate)
		communities := make([]uint32, 960)
		for j := range communities {
			communities[j] = uint32(i*1000 + j)
		}
		u.PathAttributes = append(u.PathAttributes, packet.NewPathAttributeCommunities(communities))
		c.write(m)
	}
	until(t, s, "all routes", func(st bgp.PeerState) bool { return st.Refused() == routes })
	if took := (int64(heap()) - int64(before)) / routes; took > 1500 {
		t.Errorf("a route with 3.8 KB of communities takes %d bytes; want no more than 1500", took)
	}
}

// There is a bound of routes that are kept of a router, of either family. It keeps its session all the same.
func TestReceivedIsBounded(t *testing.T) {
	r := newRouter(t)
	cfg := config(r.peer())
	cfg.HoldTime = time.Hour // this router sends no keepalives
	s, err := bgp.New(cfg)
	fatal.If(t, err)
	const most = 1000
	s.SetMostReceived(most)
	runs(t, s)
	set(t, s)
	c := r.establish()
	until(t, s, "established", established)
	send := func(from, n int) {
		var list []packet.PathNLRI
		for i := range n {
			list = append(list, hostRoute(t, from+i))
		}
		c.write(update(t, list))
		hop := netip.MustParseAddr("2001:db8::1")
		v6, err := packet.NewPathAttributeMpReachNLRI(packet.RF_IPv6_UC, hostRoutes6(t, from, n), hop)
		fatal.If(t, err)
		c.write(packet.NewBGPUpdateMessage(nil, []packet.PathAttributeInterface{
			packet.NewPathAttributeOrigin(0), v6,
			packet.NewPathAttributeAsPath([]packet.AsPathParamInterface{packet.NewAs4PathParam(2, []uint32{routerAS})}),
		}, nil))
	}
	for i := range 10 {
		send(i*50, 50)
	}
	until(t, s, "as many as are kept", func(st bgp.PeerState) bool { return st.Refused() == most })
	set(t, s, route("198.51.100.1/32")) // and so it looks
	until(t, s, "that it is full", func(st bgp.PeerState) bool { return s.Full(st.Address) })
	for i := range 40 {
		send(10_000+i*50, 50)
	}
	// What is taken back comes last, so all before it is counted by then.
	c.write(packet.NewBGPUpdateMessage([]packet.PathNLRI{hostRoute(t, 0), hostRoute(t, 1)}, nil, nil))
	st := until(t, s, "those that were kept but two, and one of each family for all that were not", func(st bgp.PeerState) bool {
		return st.IPv4.Refused == most/2-1 && st.IPv6.Refused == most/2+1
	})
	if st.State != bgp.Established {
		t.Errorf("%+v; want a session", st)
	}
}

func hostRoutes6(t *testing.T, from, n int) (list []packet.PathNLRI) {
	t.Helper()
	for i := range n {
		nlri, err := packet.NewIPAddrPrefix(netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte((from + i) >> 8), 15: byte(from + i)}), 128))
		fatal.If(t, err)
		list = append(list, packet.PathNLRI{NLRI: nlri})
	}
	return list
}
