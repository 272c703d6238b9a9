package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/netnstest"
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
	if err := netnstest.Veth(a.Host.Namespace, a.Name, b.Host.Namespace, b.Name); err != nil {
		return err
	}
	return errors.Join(a.setUp(), b.setUp())
}

// setUp sets an end up and gives it its addresses, each in a /24 or /64.
func (e End) setUp() error {
	var addrs []netip.Prefix
	for _, d := range e.Addrs {
		addrs = append(addrs, netip.PrefixFrom(d.V4, 24), netip.PrefixFrom(d.V6, 64))
	}
	return e.Host.SetUp(e.Name, addrs...)
}

// attach joins an endpoint host to the host that routes to it, by a link that
// carries no network: the endpoint has /32 and /128, the router routes to them.
func attach(router *Host, routerAddr netip.Addr, endpoint *Host) error {
	addr, name := endpoint.Addr(), endpoint.Role
	if err := netnstest.Veth(endpoint.Namespace, "eth0", router.Namespace, name); err != nil {
		return err
	}
	return errors.Join(
		router.SetUp(name),
		endpoint.SetUp("eth0"),
		router.AddPrefix(name, netip.PrefixFrom(routerAddr, 32), addr.V4),
		router.AddPrefix(name, netip.PrefixFrom(nodeLinkLocal, 64), netip.Addr{}),
		router.AddRoute(name, addr.V6, netip.Addr{}),
		endpoint.AddPrefix("eth0", netip.PrefixFrom(addr.V4, 32), routerAddr),
		endpoint.AddPrefix("eth0", netip.PrefixFrom(addr.V6, 128), netip.Addr{}),
		endpoint.AddRoute("eth0", netip.Addr{}, routerAddr),
		endpoint.AddRoute("eth0", netip.Addr{}, nodeLinkLocal),
	)
}

// defaultRoute sends what has no other way to via, in both families. Table 0 is the main one.
func (h *Host) defaultRoute(via Dual, table int) error {
	for _, gw := range via.Each() {
		if err := h.Links.RouteAdd(&netlink.Route{Gw: gw.AsSlice(), Table: table}); err != nil {
			return fmt.Errorf("routing by %s on %s: %w", gw, h.Role, err)
		}
	}
	return nil
}

// routeNetwork sends a network of the lab by way of via, in both families.
func (h *Host) routeNetwork(network byte, via Dual) error {
	d := dual(network, 0)
	for _, r := range []netlink.Route{
		{Dst: netnstest.IPNet(netip.PrefixFrom(d.V4, 16)), Gw: via.V4.AsSlice()},
		{Dst: netnstest.IPNet(netip.PrefixFrom(d.V6, 64)), Gw: via.V6.AsSlice()},
	} {
		if err := h.Links.RouteAdd(&r); err != nil {
			return fmt.Errorf("routing %s by %s on %s: %w", r.Dst, r.Gw, h.Role, err)
		}
	}
	return nil
}
