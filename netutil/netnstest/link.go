package netnstest

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Veth joins two namespaces by a link of Ethernet, whose ends are not up yet.
func Veth(a *Namespace, nameA string, b *Namespace, nameB string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	if err := a.Links.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.handle)}); err != nil {
		return fmt.Errorf("linking %s of %s to %s of %s: %w", nameA, a.Name, nameB, b.Name, err)
	}
	return nil
}

// SetUp sets an interface up and gives it addresses.
func (n *Namespace) SetUp(name string, addrs ...netip.Prefix) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	if err := n.Links.LinkSetUp(l); err != nil {
		return fmt.Errorf("setting %s of %s up: %w", name, n.Name, err)
	}
	for _, a := range addrs {
		if err := n.AddPrefix(name, a, netip.Addr{}); err != nil {
			return err
		}
	}
	return nil
}

func (n *Namespace) link(name string) (netlink.Link, error) {
	l, err := n.Links.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding %s of %s: %w", name, n.Name, err)
	}
	return l, nil
}

// AddPrefix gives an interface an address, which points to peer when that is valid. It can be used at once.
func (n *Namespace) AddPrefix(name string, addr netip.Prefix, peer netip.Addr) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: IPNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if peer.IsValid() {
		a.Peer = IPNet(netip.PrefixFrom(peer, peer.BitLen()))
	}
	if err := n.Links.AddrAdd(l, a); err != nil {
		return fmt.Errorf("adding %s to %s of %s: %w", addr, name, n.Name, err)
	}
	return nil
}

// AddAddr gives an interface one more address, of no network; RemoveAddr takes it away.
func (n *Namespace) AddAddr(name string, addr netip.Addr) error {
	return n.AddPrefix(name, netip.PrefixFrom(addr, addr.BitLen()), netip.Addr{})
}

// RemoveAddr takes an address away that AddAddr gave.
func (n *Namespace) RemoveAddr(name string, addr netip.Addr) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	return n.Links.AddrDel(l, &netlink.Addr{IPNet: IPNet(netip.PrefixFrom(addr, addr.BitLen()))})
}

// AddRoute routes dst, or everything when it is not valid, out of an interface, by way of via when that is valid.
func (n *Namespace) AddRoute(name string, dst, via netip.Addr) error {
	l, err := n.link(name)
	if err != nil {
		return err
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index}
	if dst.IsValid() {
		r.Dst = IPNet(netip.PrefixFrom(dst, dst.BitLen()))
	}
	if via.IsValid() {
		r.Gw, r.Flags = via.AsSlice(), int(netlink.FLAG_ONLINK)
	}
	if err := n.Links.RouteAdd(r); err != nil {
		return fmt.Errorf("routing %v by %v on %s: %w", dst, via, n.Name, err)
	}
	return nil
}

// IPNet returns a prefix as package netlink takes it.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
