package node

import (
	"cmp"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/source"
)

// InCluster returns settings with what a cluster says where they leave it open: the
// ranges of its ClusterIPs, and of this host the zone and local sources. nil: it says nothing.
func InCluster(s configs.Settings, n *source.ClusterNode, services []netip.Prefix) configs.Settings {
	if len(s.ServiceCIDRs) == 0 {
		s.ServiceCIDRs = services
	}
	if n == nil {
		return s
	}
	s.Zone = cmp.Or(s.Zone, n.Zone)
	if len(s.LocalCIDRs) == 0 && len(s.LocalInterfaces) == 0 {
		s.LocalCIDRs = n.PodCIDRs
	}
	return s
}

// Primary returns the addresses of this host with those primary that a cluster says, as far as
// it has them; nil, or none of them: it says nothing.
func Primary(addrs []links.Addr, n *source.ClusterNode) []links.Addr {
	said := func(a links.Addr) bool { return n != nil && slices.Contains(n.Addrs, a.Addr) }
	if !slices.ContainsFunc(addrs, said) {
		return addrs
	}
	out := slices.Clone(addrs)
	for i := range out {
		out[i].Primary = said(out[i])
	}
	return out
}
