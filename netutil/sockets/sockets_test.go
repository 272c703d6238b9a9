package sockets

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// listen opens a socket, and returns what it is to be seen as.
func listen(t *testing.T, network, address string) Listener {
	t.Helper()
	var lc net.ListenConfig
	if network[:3] == "udp" {
		c, err := lc.ListenPacket(t.Context(), network, address)
		fatal.If(t, err)
		t.Cleanup(func() { c.Close() })
		return Listener{Protocol: unix.IPPROTO_UDP, AddrPort: unmapped(c.LocalAddr().(*net.UDPAddr).AddrPort()), Own: true}
	}
	l, err := lc.Listen(t.Context(), network, address)
	fatal.If(t, err)
	t.Cleanup(func() { l.Close() })
	return Listener{Protocol: unix.IPPROTO_TCP, AddrPort: unmapped(l.Addr().(*net.TCPAddr).AddrPort()), Own: true}
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

func TestListenersOfThisHost(t *testing.T) {
	both := listen(t, "tcp", "[::]:0")
	both.DualStack = true
	want := []Listener{
		listen(t, "tcp4", "0.0.0.0:0"), listen(t, "tcp4", "127.0.0.1:0"), listen(t, "tcp6", "[::]:0"), both,
		listen(t, "udp4", "0.0.0.0:0"), listen(t, "udp6", "[::1]:0"),
	}
	connected, err := new(net.Dialer).DialContext(t.Context(), "udp", want[4].String())
	fatal.If(t, err)
	defer connected.Close()
	got, err := Listeners()
	fatal.If(t, err)
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("no %+v among %+v", w, got)
		}
	}
	for _, l := range got {
		if l.Protocol == unix.IPPROTO_UDP && l.AddrPort == connected.LocalAddr().(*net.UDPAddr).AddrPort() {
			t.Errorf("%+v has a peer", l)
		}
	}
}

// A socket that another process has is not ours.
func TestListenerOfAnother(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	fatal.If(t, err)
	f, err := l.(*net.TCPListener).File()
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	child := exec.CommandContext(ctx, "sleep", "600")
	child.ExtraFiles = []*os.File{f}
	fatal.If(t, child.Start())
	t.Cleanup(func() { cancel(); _ = child.Wait() })
	want := Listener{Protocol: unix.IPPROTO_TCP, AddrPort: l.Addr().(*net.TCPAddr).AddrPort()}
	l.Close()
	f.Close()
	got, err := Listeners()
	if err != nil || !slices.Contains(got, want) {
		t.Errorf("%v; no %+v among %+v", err, want, got)
	}
}
