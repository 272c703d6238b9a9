// Package node makes a policy.Node, what proxier must know of this host, of the settings and the addresses of the host.
// A Host follows both.
package node

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Build returns the node that settings and addresses make.
func Build(s configs.Settings, addrs []links.Addr) *policy.Node {
	n := &policy.Node{
		Name: s.NodeName, Zone: s.Zone,
		LocalhostNodePorts: s.LocalhostNodePorts,
		LocalCIDRs:         s.LocalCIDRs,
		LocalInterfaces:    s.LocalInterfaces,
		Masquerade:         masquerade(s.Masquerade),
		MarkBit:            s.MasqueradeBit,
		ServiceCIDRs:       s.ServiceCIDRs,
	}
	linked := make(map[netip.Addr]bool)
	for _, a := range addrs {
		// By the address, not by its interface: routers put global addresses on lo.
		if a.IsLoopback() || a.IsLinkLocalUnicast() || a.Scope == links.Link {
			continue
		}
		n.Addrs = append(n.Addrs, a.Addr)
		linked[a.Addr] = linked[a.Addr] || !a.Loopback
		if a.Up {
			n.UpAddrs = append(n.UpAddrs, a.Addr)
		}
		if a.Up && a.Primary {
			n.PrimaryAddrs = append(n.PrimaryAddrs, a.Addr)
		}
	}
	n.LoopbackAddrs = sorted(slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool { return linked[a] }))
	n.Addrs, n.UpAddrs, n.PrimaryAddrs = sorted(n.Addrs), sorted(n.UpAddrs), sorted(n.PrimaryAddrs)
	n.NodePortAddrs = n.NodePortAddrsOf(source.SelectAddresses(s.NodePortAddresses))
	return n
}

// sorted returns addrs in order, each once: two interfaces may have the same.
func sorted(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

func masquerade(mode string) source.Masquerading {
	switch mode {
	case "all":
		return source.MasqueradeAll
	case "never":
		return source.MasqueradeNever
	}
	return source.MasqueradeAuto
}

// Reserved returns the TCP ports that svcproxy itself listens on.
func Reserved(s configs.Settings) []netip.AddrPort {
	var ports []netip.AddrPort
	for _, address := range slices.Compact([]string{s.MetricsAddress, s.HTTPAddress, s.StatusAt()}) {
		if port, ok := listens(address); ok {
			ports = append(ports, port)
		}
	}
	if s.BGP.Enabled() && s.BGP.Port != 0 {
		ports = append(ports, netip.AddrPortFrom(netip.IPv6Unspecified(), s.BGP.Port)) // of both families
	}
	return ports
}

// listens returns what an address to listen on takes, unless there is none. A
// host name stands for any address: what it resolves to may change.
func listens(address string) (netip.AddrPort, bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return netip.AddrPort{}, false
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr = netip.IPv4Unspecified()
	}
	return netip.AddrPortFrom(addr, uint16(n)), true
}
