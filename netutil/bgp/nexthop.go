package bgp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A hop is the next hop of the routes of one family to one peer.
type hop struct {
	self bool       // the address of the session
	addr netip.Addr // or this one
	why  string     // or none, for this reason
}

// The families, as indexes.
const (
	ipv4 = iota
	ipv6
	families
)

var familyNames = [families]string{"IPv4", "IPv6"}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// nextHops returns the next hops to a peer. It asks the kernel for the route to it,
// so the result may change. extended reports whether the peer takes IPv4 routes with IPv6 next hops.
func nextHops(p Peer, extended bool) (hops [families]hop) {
	own := familyOf(p.Address)
	other := 1 - own
	hops[own] = hop{self: true}
	addr, err := towards(p, other)
	switch {
	case err == nil:
		hops[other] = hop{addr: addr}
	case other == ipv4 && extended:
		hops[other] = hop{self: true}
	default:
		hops[other] = hop{why: err.Error()}
	}
	return hops
}

// towards returns the address of a family on the interface by which the peer is reached.
func towards(p Peer, family int) (netip.Addr, error) {
	opts := &netlink.RouteGetOptions{}
	if p.Source.IsValid() {
		opts.SrcAddr = p.Source.AsSlice()
	}
	found, err := netlink.RouteGetWithOptions(p.Address.AsSlice(), opts)
	if err != nil || len(found) == 0 {
		return netip.Addr{}, fmt.Errorf("no route to the peer: %w", err)
	}
	link, err := netlink.LinkByIndex(found[0].LinkIndex)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("finding the interface towards the peer: %w", err)
	}
	list, err := netlink.AddrList(link, [families]int{unix.AF_INET, unix.AF_INET6}[family])
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing the addresses of %s: %w", link.Attrs().Name, err)
	}
	addr, ok := best(list)
	if !ok {
		return netip.Addr{}, fmt.Errorf("no %s address on %s, the interface towards the peer", familyNames[family], link.Attrs().Name)
	}
	return addr, nil
}

// unusable are the flags of addresses that a router should not send packets to.
const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED | unix.IFA_F_DEPRECATED

// best returns the address to be reached at: global, of a network rather than a host, as
// those are service addresses, and the lowest of these.
func best(list []netlink.Addr) (netip.Addr, bool) {
	var found []netip.Prefix
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		addr = addr.Unmap()
		// The flag of a temporary IPv6 address is that of a secondary IPv4 one, which is as good as another.
		temporary := addr.Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0
		if !ok || a.Scope != unix.RT_SCOPE_UNIVERSE || a.Flags&unusable != 0 || temporary {
			continue
		}
		ones, _ := a.Mask.Size()
		found = append(found, netip.PrefixFrom(addr, ones))
	}
	if len(found) == 0 {
		return netip.Addr{}, false
	}
	return slices.MinFunc(found, func(a, b netip.Prefix) int {
		if a.IsSingleIP() != b.IsSingleIP() {
			if b.IsSingleIP() {
				return -1
			}
			return 1
		}
		return a.Addr().Compare(b.Addr())
	}).Addr(), true
}
