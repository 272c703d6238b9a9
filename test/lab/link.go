package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var families = []int{unix.AF_INET, unix.AF_INET6}

// nodeLinkLocal is the IPv6 address of the other side of an endpoint's link: the
// endpoint's default route. IPv4 needs none: ARP answers for every address of a host.
var nodeLinkLocal = netip.MustParseAddr("fe80::1")

// An End is one end of a link: a host, the name of its interface and its addresses there.
type End struct {
	Host  *Host
	Name  string
	Addrs []Dual
}

// Link joins two hosts by a link of Ethernet, whose ends have addresses of networks of /24 and /64.
func Link(a, b End) error {
	if err := veth(a, b); err != nil {
		return err
	}
	return errors.Join(a.setUp(), b.setUp())
}

// setUp sets an end up and gives it its addresses, each in a /24 or /64.
func (e End) setUp() error {
	if err := e.Host.linkUp(e.Name); err != nil {
		return err
	}
	for _, d := range e.Addrs {
		err := errors.Join(
			e.Host.addAddr(e.Name, netip.PrefixFrom(d.V4, 24), netip.Addr{}),
			e.Host.addAddr(e.Name, netip.PrefixFrom(d.V6, 64), netip.Addr{}))
		if err != nil {
			return err
		}
	}
	return nil
}

// attach joins an endpoint host to the host that routes to it, by a link that
// carries no network: the endpoint has /32 and /128, the router routes to them.
func attach(router *Host, routerAddr netip.Addr, endpoint *Host) error {
	if err := veth(End{Host: endpoint, Name: "eth0"}, End{Host: router, Name: endpoint.Role}); err != nil {
		return err
	}
	addr, name := endpoint.Addr(), endpoint.Role
	return errors.Join(
		router.linkUp(name),
		endpoint.linkUp("eth0"),
		router.addAddr(name, netip.PrefixFrom(routerAddr, 32), addr.V4),
		router.addAddr(name, netip.PrefixFrom(nodeLinkLocal, 64), netip.Addr{}),
		router.addRoute(name, addr.V6, netip.Addr{}),
		endpoint.addAddr("eth0", netip.PrefixFrom(addr.V4, 32), routerAddr),
		endpoint.addAddr("eth0", netip.PrefixFrom(addr.V6, 128), netip.Addr{}),
		endpoint.addRoute("eth0", netip.Addr{}, routerAddr),
		endpoint.addRoute("eth0", netip.Addr{}, nodeLinkLocal),
	)
}

func veth(a, b End) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = a.Name
	err := a.Host.links.LinkAdd(&netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      b.Name,
		PeerNamespace: netlink.NsFd(b.Host.handle),
	})
	if err != nil {
		return fmt.Errorf("linking %s to %s: %w", a.Host.Role, b.Host.Role, err)
	}
	return nil
}

func (h *Host) linkUp(name string) error {
	l, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s of %s: %w", name, h.Role, err)
	}
	return h.links.LinkSetUp(l)
}

// AddAddr gives an interface of the host one more address; RemoveAddr takes it away.
func (h *Host) AddAddr(name string, addr netip.Addr) error {
	return h.addAddr(name, netip.PrefixFrom(addr, addr.BitLen()), netip.Addr{})
}

// RemoveAddr takes an address away that AddAddr gave.
func (h *Host) RemoveAddr(name string, addr netip.Addr) error {
	l, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s of %s: %w", name, h.Role, err)
	}
	return h.links.AddrDel(l, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(addr, addr.BitLen()))})
}

// addAddr gives an interface an address, pointing to peer when that is valid.
func (h *Host) addAddr(name string, addr netip.Prefix, peer netip.Addr) error {
	l, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s of %s: %w", name, h.Role, err)
	}
	a := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if peer.IsValid() {
		a.Peer = ipNet(netip.PrefixFrom(peer, peer.BitLen()))
	}
	if err := h.links.AddrAdd(l, a); err != nil {
		return fmt.Errorf("adding %s to %s of %s: %w", addr, name, h.Role, err)
	}
	return nil
}

// addRoute routes dst, or everything when it is not valid, out of an interface, by way of via when that is valid.
func (h *Host) addRoute(name string, dst, via netip.Addr) error {
	l, err := h.links.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s of %s: %w", name, h.Role, err)
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index}
	if dst.IsValid() {
		r.Dst = ipNet(netip.PrefixFrom(dst, dst.BitLen()))
	}
	if via.IsValid() {
		r.Gw, r.Flags = via.AsSlice(), int(netlink.FLAG_ONLINK)
	}
	if err := h.links.RouteAdd(r); err != nil {
		return fmt.Errorf("routing %v by %v on %s: %w", dst, via, h.Role, err)
	}
	return nil
}

// defaultRoute sends what has no other way to via, in both families. Table 0 is the main one.
func (h *Host) defaultRoute(via Dual, table int) error {
	for _, gw := range via.Each() {
		if err := h.links.RouteAdd(&netlink.Route{Gw: gw.AsSlice(), Table: table}); err != nil {
			return fmt.Errorf("routing by %s on %s: %w", gw, h.Role, err)
		}
	}
	return nil
}

// routeNetwork sends a network of the lab by way of via, in both families.
func (h *Host) routeNetwork(network byte, via Dual) error {
	d := dual(network, 0)
	for _, r := range []netlink.Route{
		{Dst: ipNet(netip.PrefixFrom(d.V4, 16)), Gw: via.V4.AsSlice()},
		{Dst: ipNet(netip.PrefixFrom(d.V6, 64)), Gw: via.V6.AsSlice()},
	} {
		if err := h.links.RouteAdd(&r); err != nil {
			return fmt.Errorf("routing %s by %s on %s: %w", r.Dst, r.Gw, h.Role, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
