// Package links lists the addresses of this host and watches them (links.go, watch.go),
// and manages the dummy device that holds service addresses in ipvs mode (dummy.go).
package links

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Own is the name of the program's own device. Addrs and Watch ignore it.
const Own = "svcproxy0"

// A Scope is where an address is valid.
type Scope uint8

// The scopes of an address.
const (
	Global Scope = iota // anywhere; includes private and unique local addresses
	Link                // on its link only
	Host                // on this host only
)

func (s Scope) String() string { return [...]string{"global", "link", "host"}[s] }

// An Addr is an address of an interface.
type Addr struct {
	netip.Addr
	Interface string // its name
	Index     int    // of the interface
	Up        bool   // the interface is up
	Loopback  bool   // the interface is loopback, or the address is in 127.0.0.0/8 or ::1
	Scope     Scope

	// Primary: a global address of the interface of its family's default route
	// or, without such a route, of the first interface that is up and not loopback.
	Primary bool
}

// Addrs returns the addresses of all interfaces except Own, in order of interface
// index and address.
func Addrs() ([]Addr, error) {
	ifs, err := interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing network interfaces: %w", err)
	}
	var out []Addr
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		of, err := addrsOf(family, ifs)
		if err != nil {
			return nil, err
		}
		out = append(out, of...)
	}
	slices.SortFunc(out, func(a, b Addr) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), a.Compare(b.Addr))
	})
	return out, nil
}

// Index returns the index of the interface of this name, 0: there is none. An alternative name of another one
// does not count: the kernel takes it in place of the name, and gives the name back.
func Index(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("looking for interface %q: %w", name, err)
	case l.Attrs().Name != name:
		return 0, nil
	}
	return l.Attrs().Index, nil
}

// interfaces returns all interfaces except Own, by index.
func interfaces() (map[int]*netlink.LinkAttrs, error) {
	list, err := Retry(netlink.LinkList)
	if err != nil {
		return nil, err
	}
	ifs := make(map[int]*netlink.LinkAttrs, len(list))
	for _, l := range list {
		if a := l.Attrs(); a.Name != Own {
			ifs[a.Index] = a
		}
	}
	return ifs, nil
}

// addrsOf returns the addresses of one family.
func addrsOf(family int, ifs map[int]*netlink.LinkAttrs) ([]Addr, error) {
	list, err := Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	primary, err := primaryIndex(family, ifs)
	if err != nil {
		return nil, err
	}
	var out []Addr
	for _, a := range list {
		link, ok := ifs[a.LinkIndex]
		ip, valid := netip.AddrFromSlice(a.IP)
		if !ok || !valid {
			continue // Own, or created after the interfaces were listed: an event will follow
		}
		ip = ip.Unmap()
		addr := Addr{
			Addr: ip, Interface: link.Name, Index: link.Index,
			Up:       link.Flags&net.FlagUp != 0,
			Loopback: link.Flags&net.FlagLoopback != 0 || ip.IsLoopback(),
			Scope:    scopeOf(a.Scope),
		}
		addr.Primary = link.Index == primary && addr.Scope == Global && !addr.Loopback
		out = append(out, addr)
	}
	return out, nil
}

// scopeOf translates RT_SCOPE_*. Numbers between universe and link are for the
// admin's own use; none of them is narrower than a site.
func scopeOf(rt int) Scope {
	switch {
	case rt < unix.RT_SCOPE_LINK:
		return Global
	case rt == unix.RT_SCOPE_LINK:
		return Link
	}
	return Host
}

// primaryIndex returns the index of the interface whose global addresses are primary; 0: none.
func primaryIndex(family int, ifs map[int]*netlink.LinkAttrs) (int, error) {
	index, err := defaultRoute(family, ifs)
	if err != nil || index != 0 {
		return index, err
	}
	for i, l := range ifs {
		if l.Flags&net.FlagUp != 0 && l.Flags&net.FlagLoopback == 0 && (index == 0 || i < index) {
			index = i
		}
	}
	return index, nil
}

// defaultRoute returns the index of the interface of the default route with
// the lowest metric in the main table; 0: none. Of several next hops the first
// counts. Unreachable and blackhole defaults are ignored.
func defaultRoute(family int, ifs map[int]*netlink.LinkAttrs) (index int, err error) {
	best := 0
	collect := func(r netlink.Route) bool {
		i := r.LinkIndex
		if len(r.MultiPath) > 0 {
			i = r.MultiPath[0].LinkIndex
		}
		_, known := ifs[i]
		if known && isDefault(&r) && (index == 0 || r.Priority < best) {
			index, best = i, r.Priority
		}
		return true
	}
	// Not collected first: the main table can hold the full routes of the internet.
	_, err = Retry(func() (struct{}, error) {
		index = 0
		// The library rejects a nil filter; this one selects the main table.
		return struct{}{}, netlink.RouteListFilteredIter(family, &netlink.Route{}, 0, collect)
	})
	if err != nil {
		return 0, fmt.Errorf("listing routes: %w", err)
	}
	return index, nil
}

func isDefault(r *netlink.Route) bool {
	ones := 0
	if r.Dst != nil {
		ones, _ = r.Dst.Mask.Size()
	}
	return r.Type == unix.RTN_UNICAST && ones == 0
}

// attempts is how often a listing is tried that changes interrupt.
const attempts = 5

// Retry calls list again if the kernel says that something changed meanwhile,
// so that the list may be incomplete; five times in all.
func Retry[T any](list func() (T, error)) (v T, err error) {
	for range attempts {
		if v, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return v, err
}
