//go:build netns

package links

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/fatal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// namespace moves the test into a network namespace of its own, which ends with
// the test's thread. lo is up and has index 1.
func namespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	fatal.If(t, unix.Unshare(unix.CLONE_NEWNET))
	up(t, "lo")
}

// bridge makes an interface with an index. It is down. (Not every kernel has dummy devices.)
func bridge(t *testing.T, name string, index int) {
	t.Helper()
	fatal.If(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, Index: index}}))
}

func up(t *testing.T, name string) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	fatal.If(t, err)
	fatal.If(t, netlink.LinkSetUp(l))
}

// add gives an interface an address without duplicate address detection.
func add(t *testing.T, name, cidr string, scope int) {
	t.Helper()
	l, err := netlink.LinkByName(name)
	fatal.If(t, err)
	a, err := netlink.ParseAddr(cidr)
	fatal.If(t, err)
	a.Scope, a.Flags = scope, unix.IFA_F_NODAD
	fatal.If(t, netlink.AddrAdd(l, a))
}

// route adds a default route; without an interface it is an unreachable one.
func route(t *testing.T, family int, name string, metric int) {
	t.Helper()
	_, dst, err := net.ParseCIDR(map[int]string{unix.AF_INET: "0.0.0.0/0", unix.AF_INET6: "::/0"}[family])
	fatal.If(t, err)
	r := &netlink.Route{Family: family, Dst: dst, Priority: metric, Type: unix.RTN_UNREACHABLE}
	if name != "" {
		l, err := netlink.LinkByName(name)
		fatal.If(t, err)
		r.LinkIndex, r.Type = l.Attrs().Index, unix.RTN_UNICAST
	}
	fatal.If(t, netlink.RouteAdd(r))
}

// describe writes addresses one a line, without the random link-local ones of IPv6.
func describe(t *testing.T) string {
	t.Helper()
	addrs, err := Addrs()
	fatal.If(t, err)
	var b strings.Builder
	for _, a := range addrs {
		if a.Is6() && a.IsLinkLocalUnicast() {
			continue
		}
		fmt.Fprintf(&b, "%d %s %v %v", a.Index, a.Interface, a.Addr, a.Scope)
		for _, f := range []struct {
			name string
			set  bool
		}{{"up", a.Up}, {"loopback", a.Loopback}, {"primary", a.Primary}} {
			if f.set {
				b.WriteString(" " + f.name)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func expect(t *testing.T, when, want string) {
	t.Helper()
	if got := describe(t); got != want {
		t.Errorf("%s:\n got:\n%swant:\n%s", when, got, want)
	}
}

func TestAddrs(t *testing.T) {
	namespace(t)
	bridge(t, "down0", 10)
	add(t, "down0", "192.0.2.1/24", unix.RT_SCOPE_UNIVERSE)
	bridge(t, Own, 11)
	up(t, Own)
	add(t, Own, "10.96.0.1/32", unix.RT_SCOPE_UNIVERSE)
	bridge(t, "eth1", 13)
	up(t, "eth1")
	add(t, "eth1", "198.51.100.1/24", unix.RT_SCOPE_UNIVERSE)
	add(t, "eth1", "2001:db8:1::1/64", unix.RT_SCOPE_UNIVERSE)
	bridge(t, "eth0", 12)
	up(t, "eth0")
	add(t, "eth0", "203.0.113.7/24", unix.RT_SCOPE_UNIVERSE)
	add(t, "eth0", "203.0.113.6/24", unix.RT_SCOPE_UNIVERSE)
	add(t, "eth0", "169.254.3.4/16", unix.RT_SCOPE_LINK)
	add(t, "eth0", "2001:db8::1/64", unix.RT_SCOPE_UNIVERSE)
	add(t, "lo", "10.0.0.1/32", unix.RT_SCOPE_UNIVERSE)

	expect(t, "without a default route", `1 lo 10.0.0.1 global up loopback
1 lo 127.0.0.1 host up loopback
1 lo ::1 host up loopback
10 down0 192.0.2.1 global
12 eth0 169.254.3.4 link up
12 eth0 203.0.113.6 global up primary
12 eth0 203.0.113.7 global up primary
12 eth0 2001:db8::1 global up primary
13 eth1 198.51.100.1 global up
13 eth1 2001:db8:1::1 global up
`)

	// Each family has its own; the least metric wins; unreachable is none.
	route(t, unix.AF_INET, "eth0", 200)
	route(t, unix.AF_INET, "eth1", 100)
	route(t, unix.AF_INET6, "", 1)
	route(t, unix.AF_INET6, "eth0", 300)
	expect(t, "with default routes", `1 lo 10.0.0.1 global up loopback
1 lo 127.0.0.1 host up loopback
1 lo ::1 host up loopback
10 down0 192.0.2.1 global
12 eth0 169.254.3.4 link up
12 eth0 203.0.113.6 global up
12 eth0 203.0.113.7 global up
12 eth0 2001:db8::1 global up primary
13 eth1 198.51.100.1 global up primary
13 eth1 2001:db8:1::1 global up
`)
}

// A default route with several next hops belongs to the first one's interface.
func TestAddrsMultipath(t *testing.T) {
	namespace(t)
	var hops []*netlink.NexthopInfo
	for i, name := range []string{"eth1", "eth0"} {
		bridge(t, name, 20-i)
		up(t, name)
		add(t, name, fmt.Sprintf("192.0.2.%d/32", i+1), unix.RT_SCOPE_UNIVERSE)
		hops = append(hops, &netlink.NexthopInfo{LinkIndex: 20 - i})
	}
	_, dst, _ := net.ParseCIDR("0.0.0.0/0")
	fatal.If(t, netlink.RouteAdd(&netlink.Route{Dst: dst, MultiPath: hops}))
	expect(t, "with two next hops", `1 lo 127.0.0.1 host up loopback
1 lo ::1 host up loopback
19 eth0 192.0.2.2 global up
20 eth1 192.0.2.1 global up primary
`)
}

func TestWatchReportsChanges(t *testing.T) {
	namespace(t)
	// A link-local address would change by itself, when it has been found to be nobody else's.
	fatal.If(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644))
	ns, err := netns.Get()
	fatal.If(t, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE) // for the other thread
	fatal.If(t, err)
	defer h.Close()
	bridge(t, "eth0", 10)
	up(t, "eth0")
	bridge(t, Own, 11)
	up(t, Own)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	calls := make(chan struct{}, 100)
	var got []string
	go func() {
		defer cancel()
		got = steps(h, calls)
	}()
	Watch(ctx, slog.New(slog.DiscardHandler), func() error { calls <- struct{}{}; return nil })

	want := []string{"start: told", "address: told", "own addresses: quiet", "route to a network: quiet",
		"default route: told", "link down: told", "own device removed: quiet", "own device again: told", "own address: quiet"}
	if !slices.Equal(got, want) {
		t.Errorf("Watch\n got: %q\nwant: %q", got, want)
	}
}

// Addresses that could not be read are read again, without another change.
func TestWatchTriesAgain(t *testing.T) {
	namespace(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log strings.Builder
	n := 0
	Watch(ctx, slog.New(slog.NewTextHandler(&log, nil)), func() error {
		if n++; n < 3 {
			return errors.New("interrupted")
		}
		cancel()
		return nil
	})
	if n != 3 {
		t.Errorf("addresses were read %d times, want 3", n)
	}
	if told := strings.Count(log.String(), "interrupted"); told != 1 {
		t.Errorf("told %d times:\n%s", told, log.String())
	}
}

// steps changes the namespace of h step by step and says after which steps a call came.
func steps(h *netlink.Handle, calls <-chan struct{}) (got []string) {
	eth0 := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 10}}
	own := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Own, Index: 11}}
	again := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: Own, Index: 12}}
	addr := func(l netlink.Link, cidr string) error {
		a, _ := netlink.ParseAddr(cidr)
		return h.AddrAdd(l, a)
	}
	gateway := net.ParseIP("192.0.2.254")
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"start", func() error { return nil }},
		{"address", func() error { return addr(eth0, "192.0.2.1/24") }},
		{"own addresses", func() error { return addr(own, "10.96.0.1/32") }},
		{"route to a network", func() error {
			_, dst, _ := net.ParseCIDR("198.51.100.0/24")
			return h.RouteAdd(&netlink.Route{Dst: dst, Gw: gateway})
		}},
		{"default route", func() error { return h.RouteAdd(&netlink.Route{Gw: gateway}) }},
		{"link down", func() error { return h.LinkSetDown(eth0) }},
		{"own device removed", func() error { return h.LinkDel(own) }},
		{"own device again", func() error { return h.LinkAdd(again) }},
		{"own address", func() error { return addr(again, "10.96.0.1/32") }},
	} {
		if err := step.do(); err != nil {
			return append(got, step.name+": "+err.Error())
		}
		got = append(got, step.name+": "+drain(calls))
	}
	return got
}

// drain waits until calls have been quiet for a time that is long beside settle.
func drain(calls <-chan struct{}) string {
	told := "quiet"
	for {
		select {
		case <-calls:
			told = "told"
		case <-time.After(6 * debounce):
			return told
		}
	}
}

func TestIndexIgnoresOtherNames(t *testing.T) {
	namespace(t)
	bridge(t, "br-a", 7)
	l, err := netlink.LinkByName("br-a")
	fatal.If(t, err)
	fatal.If(t, netlink.LinkAddAltName(l, "other"))
	for name, want := range map[string]int{"br-a": 7, "other": 0, "br": 0} {
		if got, err := Index(name); got != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want)
		}
	}
}
