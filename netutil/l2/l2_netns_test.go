//go:build netns

package l2_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/netutil/l2"
	"svcproxy.dev/svcproxy/netutil/netnstest"
)

var vip4, vip6 = netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")

// A room is a network namespace: the neighbour's, which has the bridge br0 and in which the
// test is, or that of a host, whose eth0 is a port of br0.
type room struct {
	t   *testing.T
	ns  netns.NsHandle
	mac string // of eth0
}

// do runs f in the room. It must not use t.Fatal.
func (r *room) do(f func()) {
	done := make(chan struct{})
	go func() { // not unlocked: the thread ends
		defer close(done)
		runtime.LockOSThread()
		if err := netns.Set(r.ns); err != nil {
			r.t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// ip runs the commands of lines, in one go.
func (r *room) ip(lines ...string) (out string) {
	r.t.Helper()
	r.do(func() {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		b, err := cmd.CombinedOutput()
		if out = string(b); err != nil {
			r.t.Errorf("ip: %v\n%s\n%s", err, strings.Join(lines, "\n"), b)
		}
	})
	return out
}

func (r *room) sysctl(name, value string) {
	r.t.Helper()
	r.do(func() {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644); err != nil {
			r.t.Error(err)
		}
	})
}

// announces runs an Announcer in the room until the test ends.
func (r *room) announces(t *testing.T, addrs ...netip.Addr) *l2.Announcer {
	a := l2.New(slog.New(slog.DiscardHandler))
	a.Set(addrs)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.do(func() { a.Run(ctx) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return a
}

// rooms makes a neighbour and hosts with the addresses .2 and ::2, .3 and ::3, and so on.
func rooms(t *testing.T, hosts int) (neighbour *room, list []*room) {
	t.Helper()
	netnstest.Enter(t)
	here, err := netns.Get()
	fatal.If(t, err)
	t.Cleanup(func() { here.Close() })
	neighbour = &room{t: t, ns: here}
	neighbour.ip("link add br0 type bridge", "link set br0 up",
		"address add 192.0.2.1/24 dev br0", "address add 2001:db8::1/64 dev br0 nodad")
	for i := range hosts {
		list = append(list, host(t, neighbour, i))
	}
	return neighbour, list
}

func host(t *testing.T, neighbour *room, i int) *room {
	t.Helper()
	ns, err := netns.New() // and in it
	fatal.If(t, err)
	t.Cleanup(func() { ns.Close() })
	fatal.If(t, netns.Set(neighbour.ns))
	port := fmt.Sprint("port", i)
	neighbour.ip("link add "+port+" type veth peer name eth0", "link set "+port+" master br0 up")
	l, err := netlink.LinkByName("eth0")
	fatal.If(t, err)
	fatal.If(t, netlink.LinkSetNsFd(l, int(ns)))
	r := &room{t: t, ns: ns, mac: l.Attrs().HardwareAddr.String()}
	r.ip("link set lo up", "link set eth0 up", fmt.Sprintf("address add 192.0.2.%d/24 dev eth0", i+2),
		fmt.Sprintf("address add 2001:db8::%d/64 dev eth0 nodad", i+2))
	return r
}

// entry returns what the neighbour knows of an address.
func (r *room) entry(a netip.Addr) string { return r.ip("neighbour show dev br0 to " + a.String()) }

// knows reports whether the neighbour has the link-layer address of a host for all addresses.
func (r *room) knows(h *room, addrs ...netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !strings.Contains(r.entry(a), h.mac) })
}

// looksUp is knows for a neighbour that may forget what it knew when its own link went down, and looks for that again.
func (r *room) looksUp(h *room, addrs ...netip.Addr) bool {
	for _, a := range addrs {
		if !strings.Contains(r.entry(a), "lladdr") {
			r.talk(a)
		}
	}
	return r.knows(h, addrs...)
}

// talk has the neighbour look for the link-layer address of an address.
func (r *room) talk(a netip.Addr) {
	r.do(func() {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
		if err == nil {
			_, err = c.Write([]byte("x"))
			c.Close()
		}
		if err != nil && !strings.Contains(err.Error(), "no route to host") {
			r.t.Error(err)
		}
	})
}

// mislead has the neighbour send what is for the addresses to a host that is not there.
func (r *room) mislead(addrs ...netip.Addr) {
	for _, a := range addrs {
		r.ip("neighbour replace " + a.String() + " lladdr 02:00:00:00:00:99 dev br0 nud stale")
	}
}

// Addresses move from one host to another, and neighbours follow. An IPv6 address is
// announced after duplicate address detection, which does not find the announcement.
func TestNeighboursFollowAMovedAddress(t *testing.T) {
	t.Parallel()
	n, hosts := rooms(t, 2)
	from, to := hosts[0], hosts[1]
	from.ip("address add 192.0.2.10/32 dev eth0", "address add 2001:db8::10/128 dev eth0 nodad")
	n.talk(vip4)
	n.talk(vip6)
	pace.Until(t, "the neighbour finds the first host", func() bool { return n.knows(from, vip4, vip6) })
	from.ip("address del 192.0.2.10/32 dev eth0", "address del 2001:db8::10/128 dev eth0")
	to.sysctl("net/ipv6/conf/all/forwarding", "1")
	a := to.announces(t, vip4, vip6)
	for _, r := range results(t, a, 2) {
		if r.Err == nil || r.Link != "" || !strings.Contains(r.Err.Error(), "no link of this host has it") {
			t.Errorf("without the address: %+v", r)
		}
	}
	to.ip("address add 192.0.2.10/32 dev eth0", "address add 2001:db8::10/128 dev eth0")
	if !n.knows(from, vip6) {
		t.Error("the neighbour follows without an announcement, so this test shows nothing")
	}
	pace.Until(t, "the address is checked", func() bool {
		list := a.Results()
		return len(list) == 2 && list[1].Err != nil && strings.Contains(list[1].Err.Error(), "duplicate address detection has not ended")
	})
	pace.Until(t, "the neighbour finds the second host", func() bool { return n.knows(to, vip4, vip6) })
	if shown := to.ip("address show dev eth0 to 2001:db8::10"); strings.Contains(shown, "tentative") || strings.Contains(shown, "dadfailed") {
		t.Errorf("announced before it was the host's:\n%s", shown)
	}
	if e := n.entry(vip6); !strings.Contains(e, "router") {
		t.Errorf("a router is announced as a host: %s", e)
	}
	to.sysctl("net/ipv6/conf/all/forwarding", "0")
	comeBack(t, a, vip6)
	pace.Until(t, "the neighbour sees that it is no router any more", func() bool { return !strings.Contains(n.entry(vip6), "router") })
}

// comeBack takes all addresses away, and gives some back as if they had just come.
func comeBack(t *testing.T, a *l2.Announcer, addrs ...netip.Addr) {
	t.Helper()
	a.Set(nil)
	pace.Until(t, "nothing is announced", func() bool { return len(a.Results()) == 0 })
	a.Set(addrs)
}

// results waits until so many results are there that were read of the host.
func results(t *testing.T, a *l2.Announcer, n int) (list []l2.Result) {
	t.Helper()
	pace.Until(t, "results", func() bool {
		list = a.Results()
		return len(list) == n && !slices.ContainsFunc(list, func(r l2.Result) bool {
			return r.Err != nil && strings.Contains(r.Err.Error(), "have not been read yet")
		})
	})
	return list
}

// After the link was down, neighbours are told again, whatever took it down and however short.
func TestLinkComesUp(t *testing.T) {
	t.Parallel()
	n, hosts := rooms(t, 1)
	h := hosts[0]
	h.sysctl("net/ipv6/conf/eth0/keep_addr_on_down", "1")
	h.sysctl("net/ipv6/conf/eth0/accept_dad", "0")
	h.ip("address add 192.0.2.10/32 dev eth0", "address add 2001:db8::10/128 dev eth0 nodad")
	a := h.announces(t, vip4, vip6)
	done := func() bool {
		return !slices.ContainsFunc(a.Results(), func(r l2.Result) bool { return r.Sent < 3 || r.Err != nil })
	}
	pace.Until(t, "all announcements are made", func() bool { return len(a.Results()) == 2 && done() })
	for _, tt := range []struct {
		name     string
		of       *room
		down, up string
		why      string // "": too short to be seen
	}{
		{"its administrator", h, "link set eth0 down", "link set eth0 up", "eth0 is down"},
		{"the other end", n, "link set port0 down", "link set port0 up", "eth0 has no carrier"},
		{"a moment without carrier", n, "", "link set port0 down\nlink set port0 up", ""},
	} {
		if tt.why != "" {
			tt.of.ip(tt.down)
			pace.Until(t, tt.name, func() bool {
				return !slices.ContainsFunc(a.Results(), func(r l2.Result) bool { return r.Err == nil || !strings.Contains(r.Err.Error(), tt.why) })
			})
		}
		n.mislead(vip4, vip6)
		tt.of.ip(tt.up)
		pace.Until(t, tt.name, func() bool { return n.looksUp(h, vip4, vip6) })
	}
	n.mislead(vip4, vip6)
	comeBack(t, a, vip4, vip6)
	pace.Until(t, "told of what comes back", func() bool { return n.knows(h, vip4, vip6) })
}

// The kernel answers for an address on the links on which it is announced, and else not.
func TestAnnouncedIsAnswered(t *testing.T) {
	t.Parallel()
	n, hosts := rooms(t, 1)
	h := hosts[0]
	own := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	pace.Until(t, "the bridge is up", func() bool { return n.looksUp(h, own...) })
	for _, family := range []string{"ipv4", "ipv6"} { // so that an answer that is missing is not long waited for
		n.sysctl("net/"+family+"/neigh/br0/mcast_solicit", "2")
		n.sysctl("net/"+family+"/neigh/br0/retrans_time_ms", "200")
	}
	h.ip("address add 192.0.2.10/32 dev eth0", "address add 192.0.2.11/32 dev lo", "route add local 192.0.2.12/32 dev lo",
		"address add 2001:db8::10/128 dev eth0 nodad", "address add 2001:db8::11/128 dev lo", "route add local 2001:db8::12/128 dev lo")
	var addrs []netip.Addr
	for i := range 4 { // the last is not there
		addrs = append(addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), netip.MustParseAddr(fmt.Sprint("2001:db8::1", i)))
	}
	seen := map[bool]int{}
	for _, ignore := range []string{"0", "1", "2", "3", "8"} {
		t.Run("arp_ignore "+ignore, func(t *testing.T) {
			h.sysctl("net/ipv4/conf/eth0/arp_ignore", ignore)
			answered := n.finds(t, h, addrs) // before an announcement says it too
			for _, r := range results(t, h.announces(t, addrs...), len(addrs)) {
				if seen[answered[r.Addr]]++; answered[r.Addr] != (r.Err == nil) {
					t.Errorf("%s: announced on %q: %v, and the host answers: %v", r.Addr, r.Link, r.Err, answered[r.Addr])
				}
			}
		})
	}
	if seen[true] == 0 || seen[false] == 0 {
		t.Errorf("answered %d times, and %d times not", seen[true], seen[false])
	}
}

// finds has a neighbour without knowledge look for addresses, and returns for which a host answers.
func (r *room) finds(t *testing.T, h *room, addrs []netip.Addr) map[netip.Addr]bool {
	t.Helper()
	r.ip("neighbour flush dev br0")
	for _, a := range addrs {
		r.talk(a)
	}
	answered := map[netip.Addr]bool{}
	for _, a := range addrs {
		pace.Until(t, "the neighbour knows", func() bool {
			e := r.entry(a)
			if e == "" { // the kernel forgets what failed
				r.talk(a)
			}
			answered[a] = strings.Contains(e, h.mac)
			return answered[a] || strings.Contains(e, "FAILED")
		})
	}
	return answered
}
