//go:build netns

package hosts

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/test/lab"
)

// routes are the host routes of a host, as the kernel tells of their changes.
type routes struct {
	host *lab.Host

	mu    sync.Mutex
	known map[netip.Addr]presence
	err   error // of the kernel's messages, some of which may be lost
}

// A presence is whether there is a route, since when, and how often there was none.
type presence struct {
	there bool
	since time.Time
	lost  int
}

// watchRoutes listens until the test ends.
func watchRoutes(t *testing.T, h *lab.Host) *routes {
	t.Helper()
	r := &routes{host: h, known: make(map[netip.Addr]presence)}
	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	err := h.Do(func() error {
		return netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{ErrorCallback: r.note})
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for u := range updates {
			r.take(u, time.Now())
		}
	})
	t.Cleanup(func() { close(done); wg.Wait() })
	return r
}

func (r *routes) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *routes) take(u netlink.RouteUpdate, now time.Time) {
	if u.Dst == nil || u.Table != unix.RT_TABLE_MAIN {
		return
	}
	addr, _ := netip.AddrFromSlice(u.Dst.IP)
	addr = addr.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.known[addr]
	there := u.Type == unix.RTM_NEWROUTE
	if p.there && !there {
		p.lost++
	}
	if p.there != there {
		p.there, p.since = there, now
	}
	r.known[addr] = p
}

// of returns what is known of the route to an address.
func (r *routes) of(a netip.Addr) (presence, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[a], r.err
}

// await waits until there is a route to an address, or none, and returns since when.
func (r *routes) await(a netip.Addr, want bool) (time.Time, error) {
	var p presence
	err := pace.Poll(patience, func() (err error) {
		if p, err = r.of(a); err != nil || p.there == want {
			return err
		}
		if !want {
			err = r.look(a)
		}
		return errors.Join(err, fmt.Errorf("route to %s: %v, want %v", a, p.there, want))
	})
	return p.since, err
}

// look notes that a route is gone of which the kernel did not tell: it does not where the interface's link is down.
func (r *routes) look(a netip.Addr) error {
	family := unix.AF_INET6
	if a.Is4() {
		family = unix.AF_INET
	}
	dst := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
	return r.host.Do(func() error {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Dst: dst}, netlink.RT_FILTER_DST)
		if err == nil && len(list) == 0 {
			r.take(netlink.RouteUpdate{Type: unix.RTM_DELROUTE, Route: netlink.Route{Dst: dst, Table: unix.RT_TABLE_MAIN}}, time.Now())
		}
		return err
	})
}
