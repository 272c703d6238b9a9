//go:build netns

package conntrack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

const translation = `ip link set lo up
sysctl -qw net.netfilter.nf_conntrack_acct=1
ip addr add 192.0.2.1/32 dev lo
ip route add 10.96.0.0/16 dev lo
nft add table ip nat
nft add chain ip nat output { type nat hook output priority -100; }
nft add rule ip nat output ip daddr 10.96.0.1 meta l4proto { tcp, udp } dnat to 192.0.2.1
`

// where returns what connections of many clients have in common.
func where(c conntrack.Connection) conntrack.Connection {
	return conntrack.Connection{Protocol: c.Protocol, Dst: c.Dst, Reply: c.Reply}
}

// tally counts events.
type tally struct {
	mu    sync.Mutex
	begun map[conntrack.Connection]int
	bytes map[conntrack.Connection]uint64
	lost  int
}

func (s *tally) add(e conntrack.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Begun {
		s.begun[where(e.Connection)]++
	} else {
		s.bytes[where(e.Connection)] += e.Bytes
	}
}

// follow counts events until the test ends.
func follow(t *testing.T) *tally {
	t.Helper()
	f, err := conntrack.Follow(true)
	fatal.If(t, err)
	s := &tally{begun: map[conntrack.Connection]int{}, bytes: map[conntrack.Connection]uint64{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- f.Run(ctx, s.add, func() { s.mu.Lock(); s.lost++; s.mu.Unlock() })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("following ended with %v", err)
		}
	})
	return s
}

// serveTCP answers on a port of all addresses, and returns it.
func serveTCP(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "192.0.2.1:0")
	fatal.If(t, err)
	var servers echotest.Servers
	t.Cleanup(servers.Close)
	servers.Accept(l, echotest.Echo)
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

// until waits until check returns nil.
func until(t *testing.T, check func() error) {
	t.Helper()
	fatal.If(t, pace.Poll(5*time.Second, check))
}

// translated returns all translated connections, with those that go on.
func translated(t *testing.T, ipv6 bool) (all, alive map[conntrack.Connection]int, bytes uint64) {
	t.Helper()
	all, alive = map[conntrack.Connection]int{}, map[conntrack.Connection]int{}
	err := conntrack.List(t.Context(), ipv6, conntrack.Filter{Translated: true}, func(c *conntrack.Connection) error {
		all[where(*c)]++
		bytes += c.Bytes
		if !c.Ended {
			alive[where(*c)]++
		}
		return nil
	})
	fatal.If(t, err)
	return all, alive, bytes
}

// What begins is told once, by service and endpoint; what is not translated, never.
func TestFollowAndTranslated(t *testing.T) {
	namespace(t, translation)
	port := serveTCP(t)
	service, endpoint := fmt.Sprintf("10.96.0.1:%d", port), fmt.Sprintf("192.0.2.1:%d", port)
	s := follow(t)
	var held []net.Conn
	for range 5 {
		c, err := net.Dial("tcp", service)
		fatal.If(t, err)
		defer c.Close()
		held = append(held, c)
	}
	if c, err := net.Dial("tcp", endpoint); err != nil {
		t.Fatal(err)
	} else {
		defer c.Close()
	}
	dial(t, "udp", "10.96.0.1:53")

	tcp := conntrack.Connection{Protocol: 6, Dst: netip.MustParseAddrPort(service), Reply: netip.MustParseAddrPort(endpoint)}
	udp := conntrack.Connection{Protocol: 17, Dst: netip.MustParseAddrPort("10.96.0.1:53"), Reply: netip.MustParseAddrPort("192.0.2.1:53")}
	until(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.begun[tcp] != 5 || s.begun[udp] != 1 || len(s.begun) != 2 || s.lost != 0 {
			return fmt.Errorf("begun: %v, lost %d; want 5 to %v and 1 to %v", s.begun, s.lost, tcp, udp)
		}
		return nil
	})
	if _, alive, _ := translated(t, false); alive[tcp] != 5 || alive[udp] != 1 || len(alive) != 2 {
		t.Errorf("alive: %v, want 5 to %v and 1 to %v", alive, tcp, udp)
	}
	if all, _, _ := translated(t, true); len(all) != 0 {
		t.Errorf("in IPv6 there is %v", all)
	}

	held[0].Close()
	payload := make([]byte, 10_000)
	if _, err := held[1].Write(payload); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(held[1], payload); err != nil {
		t.Fatal(err)
	}
	until(t, func() error {
		all, alive, bytes := translated(t, false)
		if all[tcp] != 5 || alive[tcp] != 4 || bytes < 20_000 {
			return fmt.Errorf("%d connections, %d of them alive, %d bytes; want 5, 4, 20000", all[tcp], alive[tcp], bytes)
		}
		return nil
	})
	if out, err := exec.Command("conntrack", "-D", "-d", "10.96.0.1", "-p", "tcp").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bytes[tcp] < 20_000 {
			return fmt.Errorf("ended connections had %d bytes", s.bytes[tcp])
		}
		return nil
	})
}
