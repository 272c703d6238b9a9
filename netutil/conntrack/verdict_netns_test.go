//go:build netns

package conntrack_test

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// translate has a rule lead from the service to a server.
func translate(t *testing.T, protocol, to string) {
	t.Helper()
	tool, service := "iptables", "10.96.0.1"
	if to[0] == '[' {
		tool, service = "ip6tables", "fd00:96::1"
	}
	for _, args := range []string{"-F OUTPUT", "-A OUTPUT -d " + service + " -p " + protocol + " -j DNAT --to-destination " + to} {
		if out, err := exec.Command(tool, strings.Fields("-w -t nat "+args)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
	}
}

const twoServers = `ip link set lo up
ip route add 10.96.0.0/24 dev lo src 127.0.0.1
ip route add fd00:96::/64 dev lo src ::1
iptables -w -t nat -A POSTROUTING -p udp --dport 5353:5354 -j SNAT --to-source 127.0.0.9
ip6tables -w -t nat -A POSTROUTING -p udp --dport 5353:5354 -j SNAT --to-source [::1]:5000-6000
`

// listenTCP accepts connections until the test ends.
func listenTCP(t *testing.T, at string) (accepted chan *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	fatal.If(t, err)
	t.Cleanup(func() { l.Close() })
	accepted = make(chan *net.TCPConn, 9)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c.(*net.TCPConn)
		}
	}()
	return accepted
}

// connect connects to the service from a fixed port, and returns who accepted it: the first of servers, or the second.
func connect(t *testing.T, port int, servers ...chan *net.TCPConn) (client *net.TCPConn, server *net.TCPConn, which int) {
	t.Helper()
	d := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, Timeout: pace.Scale(5 * time.Second),
		Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		},
	}
	c, err := d.Dial("tcp", "10.96.0.1:80")
	fatal.If(t, err)
	client = c.(*net.TCPConn)
	select {
	case server = <-servers[0]:
	case server = <-servers[1]:
		which = 1
	case <-time.After(pace.Scale(5 * time.Second)):
		t.Fatal("nobody accepted the connection")
	}
	return client, server, which
}

// After Reopen, a client that connects again from the same port after its server has reset the
// connection is balanced again; without it, it reaches the same server forever. Established and half-closed
// connections go on.
func TestReopenBalancesAgain(t *testing.T) {
	for _, tt := range []struct {
		reopened, halfClosed bool
		want                 int
	}{{false, false, 0}, {true, false, 1}, {true, true, 1}} {
		namespace(t, twoServers)
		one, two := listenTCP(t, "127.0.0.1:8080"), listenTCP(t, "127.0.0.1:8081")
		translate(t, "tcp", "127.0.0.1:8080")
		client, server, _ := connect(t, 5000, one, two)
		translate(t, "tcp", "127.0.0.1:8081")
		if tt.reopened {
			reopen(t)
		}
		exchange(t, client, server)
		if tt.halfClosed {
			fatal.If(t, server.CloseWrite())
		}
		exchange(t, client, server)
		server.SetLinger(0)
		server.Close() // a reset
		client.Read(make([]byte, 1))
		client.Close()
		if _, _, which := connect(t, 5000, one, two); which != tt.want {
			t.Errorf("%+v: server %d accepted the next connection", tt, which)
		}
	}
}

// reopen says Reopen of every connection, twice: the second time it has been said before.
func reopen(t *testing.T) {
	t.Helper()
	for _, before := range []bool{false, true} {
		seen := 0
		n, err := conntrack.Prune(t.Context(), false, conntrack.Query{Protocol: unix.IPPROTO_TCP}, func(f conntrack.Flow) conntrack.Verdict {
			if seen++; f.Reopening != before || f.Ended || f.Unreplied {
				t.Errorf("after Reopen %v: %+v", before, f)
			}
			return conntrack.Reopen
		})
		if n != 0 || err != nil || seen != 1 {
			t.Fatalf("Prune = %d, %v, with %d flows; want 0, nil, 1", n, err, seen)
		}
	}
}

// exchange sends something from one end to the other.
func exchange(t *testing.T, from, to *net.TCPConn) {
	t.Helper()
	b := make([]byte, 1)
	to.SetReadDeadline(time.Now().Add(pace.Scale(5 * time.Second)))
	if _, err := from.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Read(b); err != nil {
		t.Fatal(err)
	}
}

// After Move the next packet of a flow goes elsewhere, and the answer to the one before, which is
// still under way, reaches the client.
func TestMoveKeepsTheAnswer(t *testing.T) {
	namespace(t, twoServers)
	move(t, "10.96.0.1:53", "127.0.0.1:5353", "127.0.0.1:5354")
	move(t, "[fd00:96::1]:53", "[::1]:5353", "[::1]:5354")
}

func move(t *testing.T, service string, at ...string) {
	servers, ipv6 := [2]net.PacketConn{}, at[0][0] == '['
	for i, at := range at {
		s, err := net.ListenPacket("udp", at)
		fatal.If(t, err)
		defer s.Close()
		servers[i] = s
	}
	translate(t, "udp", at[0])
	c, err := net.Dial("udp", service)
	fatal.If(t, err)
	defer c.Close()
	send := func(what string) {
		t.Helper()
		if _, err := c.Write([]byte(what)); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(s net.PacketConn, want string) net.Addr {
		t.Helper()
		b := make([]byte, 9)
		s.SetReadDeadline(time.Now().Add(pace.Scale(5 * time.Second)))
		n, from, err := s.ReadFrom(b)
		if err != nil || string(b[:n]) != want {
			t.Fatalf("received %q, %v; want %q", b[:n], err, want)
		}
		return from
	}
	answer := func(s net.PacketConn, to net.Addr, what string) {
		t.Helper()
		if _, err := s.WriteTo([]byte(what), to); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 9)
		c.SetReadDeadline(time.Now().Add(pace.Scale(5 * time.Second)))
		if n, err := c.Read(b); err != nil || string(b[:n]) != what {
			t.Fatalf("the client received %q, %v; want %q", b[:n], err, what)
		}
	}
	send("one")
	answer(servers[0], receive(servers[0], "one"), "uno")
	send("two")
	client := receive(servers[0], "two")
	translate(t, "udp", at[1])
	all := func(conntrack.Flow) conntrack.Verdict { return conntrack.Move }
	if n, err := conntrack.Prune(t.Context(), ipv6, conntrack.Query{}, all); n != 1 || err != nil {
		t.Fatalf("Prune = %d, %v; want 1, nil", n, err)
	}
	if left := flows(t, ipv6); len(left) > 0 {
		t.Errorf("after Move, flows %q are listed", left)
	}
	send("three")
	answer(servers[0], client, "due")
	answer(servers[1], receive(servers[1], "three"), "tre")
	send("four")
	answer(servers[1], receive(servers[1], "four"), "quattro")
	until(t, func() error {
		out, err := exec.Command("conntrack", "-L", "-f", map[bool]string{false: "ipv4", true: "ipv6"}[ipv6], "-p", "udp").Output()
		if err == nil && strings.Contains(string(out), "7827") {
			return errors.New(string(out))
		}
		return err
	})
}
