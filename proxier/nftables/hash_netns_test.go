//go:build netns

package nftables_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/backendtest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// The kernel takes a client to the endpoint that the table has for it, for each thing hashed.
// So does every host: it depends on the targets alone, and not on what was there before.
func TestHashedClientsReachTheSameEndpoint(t *testing.T) {
	flows := soakOr(100_000, 2000)
	everywhere(t, func(h *host) {
		h.World.Host.LocalCIDRs, h.World.Host.LocalInterfaces = nil, nil
		h.enter(3)
		targets := backendtest.Targets(h.Family, 0, 3)
		for i, w := range []uint16{1, 2, 7} {
			targets[i].Weight = w
		}
		got := h.countSources(targets)
		for i, on := range []source.HashOn{source.ClientIPPort, source.ClientIP} {
			front := h.vip(i)
			h.Sync(h.World.Put(source.Key{Namespace: "default", Name: on.String()}, h.hashed(front, on, targets[:2]...)))
			h.Sync(h.World.Put(source.Key{Namespace: "default", Name: on.String()}, h.hashed(front, on, targets...)))
			sources := h.sendFrom(h.at(i), 20000+i*10000, flows)
			got.wait(h, len(sources))
			h.asTable(got.take(), sources, targets, on)
		}
	})
}

// soakOr returns the first number in a soak, and else the second.
func soakOr(soak, otherwise int) int {
	if os.Getenv("SVCPROXY_SOAK") == "1" {
		return soak
	}
	return otherwise
}

// hashed returns a service over UDP.
func (h *host) hashed(front policy.FrontendKey, on source.HashOn, targets ...policy.Target) *policy.Resolved {
	s := backendtest.Service{Name: on.String(), Protocol: source.UDP, Targets: targets}
	pool, _ := s.Pools()
	pool.Hash = policy.Hash{On: on, Endpoints: 3}
	route := backendtest.Route(pool, policy.NoOne, policy.Reject)
	return s.Resolve(&policy.Frontend{Key: front, Outside: route, FromLocal: route})
}

// asTable fails the test unless each client reached the endpoint of its slot.
func (h *host) asTable(got map[netip.AddrPort]int, sources []netip.AddrPort, targets []policy.Target, on source.HashOn) {
	h.Helper()
	var list []maglev.Endpoint
	for _, t := range slices.Backward(targets) { // the order makes no difference
		list = append(list, maglev.Endpoint{AddrPort: t.AddrPort(), Weight: t.Weight})
	}
	table := maglev.Fill(nil, maglev.Size(3), list)
	wrong := 0
	for _, from := range sources {
		want := len(list) - 1 - int(table[maglev.Slot(len(table), from, on == source.ClientIPPort)])
		if got[from] != want {
			if wrong++; wrong < 4 {
				h.Errorf("%s: client %s reached endpoint %d, want %d", on, from, got[from], want)
			}
		}
	}
	if wrong > 0 {
		h.Errorf("%s: %d of %d clients reached another endpoint than that of the table", on, wrong, len(sources))
	}
}

// sendFrom sends a datagram each from so many addresses and ports, and returns these.
func (h *host) sendFrom(to netip.AddrPort, port, flows int) []netip.AddrPort {
	h.Helper()
	var sources []netip.AddrPort
	for i := range flows {
		if i%10_000 == 9_999 {
			backendtest.Command(h, "conntrack", "-F")
		}
		from := netip.AddrPortFrom(h.address(100+i%clients), uint16(port+i/clients))
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(to))
		fatal.If(h, err)
		if _, err := c.Write([]byte{1}); err != nil {
			h.Fatal(err)
		}
		c.Close()
		sources = append(sources, from)
	}
	return sources
}

// arrivals are which endpoint each client has reached.
type arrivals struct {
	mu   sync.Mutex
	from map[netip.AddrPort]int
}

// countSources makes endpoints note where datagrams are from.
func (h *host) countSources(targets []policy.Target) *arrivals {
	h.Helper()
	a := &arrivals{from: map[netip.AddrPort]int{}}
	var readers sync.WaitGroup
	h.Cleanup(readers.Wait)
	for i, t := range targets {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(t.AddrPort()))
		if err != nil {
			h.Fatal(err)
		}
		h.Cleanup(func() { c.Close() })
		fatal.If(h, c.SetReadBuffer(4<<20))
		readers.Go(func() { a.read(c, i) })
	}
	return a
}

func (a *arrivals) read(c *net.UDPConn, endpoint int) {
	buf := make([]byte, 16)
	for {
		_, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		a.mu.Lock()
		a.from[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())] = endpoint
		a.mu.Unlock()
	}
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.from)
}

// take returns who has arrived, and forgets it.
func (a *arrivals) take() map[netip.AddrPort]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := a.from
	a.from = map[netip.AddrPort]int{}
	return from
}

// wait waits for so many clients.
func (a *arrivals) wait(h *host, clients int) {
	h.Helper()
	pace.UntilOr(h, func() bool { return a.count() >= clients }, func() string {
		return fmt.Sprintf("%d of %d clients have reached an endpoint", a.count(), clients)
	})
}

// A slot that is missing is found: in a soak by asking for each, as there are more of them
// than are listed.
func TestLookAtHashed(t *testing.T) {
	netnstest.Enter(t)
	h := newHost(t, policy.IPv4)
	services := soakOr(13, 1) // of 8191 slots each
	for i := range services {
		res := h.hashed(h.vip(i), source.ClientIP, backendtest.Targets(h.Family, 0, 20)...)
		res.Key.Name += strconv.Itoa(i)
		res.Pools[0].Hash.Endpoints = 20
		h.World.Put(res.Key, res)
	}
	h.Sync(nil)
	h.Backend.Recheck()
	if differs, read := h.looks(); differs || !read {
		t.Errorf("untouched: found a difference: %v, read the table: %v", differs, read)
	}
	h.nft("delete element TABLE maglev-ip-slots-8191 { " + h.vip(services-1).Addr.String() + " . udp . 80 . 0x00001ffe }")
	if !h.Look() {
		t.Error("a slot is missing: not found")
	}
	h.Sync(&policy.Delta{})
	h.Settled("a slot was removed")
}

// A host that knows nothing of connections, as one that takes over those of another, sends
// each on to the endpoint that it had: the hash says which, and connection tracking takes
// it up in the middle.
func TestConnectionsAreTakenUp(t *testing.T) {
	packets(t, 3, func(h *host) {
		res := h.hashed(h.vip(0), source.ClientIPPort, backendtest.Targets(h.Family, 0, 3)...)
		res.Frontends[0].Key.Protocol, res.Pools[0].Protocol = source.TCP, source.TCP
		h.Sync(h.World.Put(res.Key, res))
		var open []*echotest.Conn
		for i := range 40 {
			from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.address(100+i%clients), 0))
			c, err := echotest.Dial(&net.Dialer{Timeout: 10 * time.Second, LocalAddr: from}, h.at(0).String())
			fatal.If(h, err)
			h.Cleanup(func() { c.Close() })
			open = append(open, c)
		}
		backendtest.Command(h, "conntrack", "-F")
		for i, c := range open {
			if err := c.Echo(strconv.Itoa(i), 10*time.Second); err != nil {
				h.Fatalf("connection %d, of endpoint %s: %v", i, c.Server, err)
			}
		}
	})
}

// Where connections of another host may be taken over, there is a chain that holds answers back,
// and a set that packets fill. They come and go with what asks for them.
func TestTakeOverChainsComeAndGo(t *testing.T) {
	everywhere(t, func(h *host) {
		res := h.hashed(h.vip(0), source.ClientIPPort, backendtest.Targets(h.Family, 0, 3)...)
		h.Sync(h.World.Put(res.Key, res))
		if h.holdsBack() {
			t.Error("answers are held back where endpoints do not see clients")
		}
		seen := *res
		seen.HairpinPools = res.Pools[:1]
		h.Sync(h.World.Put(res.Key, &seen))
		if !h.holdsBack() {
			t.Error("answers are not held back")
		}
		h.Settled("endpoints see clients")
		h.Sync(h.World.Put(res.Key, nil))
		h.Settled("the service is gone")
		if h.holdsBack() {
			t.Error("answers are held back without a service")
		}
	})
}

// holdsBack reports whether the kernel has the chain for it.
func (h *host) holdsBack() bool {
	h.Helper()
	return strings.Contains(backendtest.Command(h, "nft", "list", "ruleset"), "chain answers {")
}
