package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/links"
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

// A none is why there is no next hop. Any other error is why it could not be found out.
type none string

func (n none) Error() string { return string(n) }

// An addrLister lists the addresses of an interface of a family.
type addrLister func(link netlink.Link, family int) ([]netlink.Addr, error)

// nextHops returns the next hops to a peer. It asks the kernel for the route to it,
// so the result may change; an error is that it could not be found out. extended reports
// whether the peer takes IPv4 routes with IPv6 next hops.
func (list addrLister) nextHops(p Peer, extended bool) (hops [families]hop, err error) {
	own := familyOf(p.Address)
	other := 1 - own
	hops[own] = hop{self: true}
	addr, err := list.towards(p, other)
	switch {
	case err == nil:
		hops[other] = hop{addr: addr}
	case other == ipv4 && extended:
		hops[other] = hop{self: true}
	default:
		hops[other] = hop{why: err.Error()}
	}
	if _, ok := errors.AsType[none](err); ok {
		return hops, nil
	}
	return hops, err
}

// towards returns the address of a family on the interface by which the peer is reached.
func (list addrLister) towards(p Peer, family int) (netip.Addr, error) {
	link, err := interfaceTo(p)
	if err != nil {
		return netip.Addr{}, err
	}
	addrs, err := links.Retry(func() ([]netlink.Addr, error) {
		return list(link, [families]int{unix.AF_INET, unix.AF_INET6}[family])
	})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("listing the addresses of %s: %w", link.Attrs().Name, err)
	}
	addr, ok := best(addrs)
	if !ok {
		return netip.Addr{}, none(fmt.Sprintf("no %s address on %s, the interface towards the peer", familyNames[family], link.Attrs().Name))
	}
	return addr, nil
}

// unreachable are the errors of the kernel where there is no route: none, or one that says so. EINVAL is that of a
// blackhole, and of a source that is not an address of this host; the last two are those of a family that this host has not.
var unreachable = []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP}

// interfaceTo returns the interface by which the peer is reached.
func interfaceTo(p Peer) (netlink.Link, error) {
	opts := &netlink.RouteGetOptions{}
	if p.Source.IsValid() {
		opts.SrcAddr = p.Source.AsSlice()
	}
	found, err := netlink.RouteGetWithOptions(p.Address.AsSlice(), opts)
	isErr := func(target error) bool { return errors.Is(err, target) }
	switch {
	case slices.ContainsFunc(unreachable, isErr):
		return nil, none(fmt.Sprintf("no route to the peer: %v", err))
	case err != nil:
		return nil, fmt.Errorf("asking for the route to the peer: %w", err)
	case len(found) == 0:
		return nil, none("no route to the peer")
	}
	link, err := netlink.LinkByIndex(found[0].LinkIndex)
	if err != nil { // if it has gone, there is another route next time, or none
		return nil, fmt.Errorf("finding the interface towards the peer: %w", err)
	}
	return link, nil
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
	if networks := slices.DeleteFunc(slices.Clone(found), netip.Prefix.IsSingleIP); len(networks) > 0 {
		found = networks
	}
	return slices.MinFunc(found, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }).Addr(), true
}
