package node

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/source"
)

// InCluster returns settings with what a cluster says where they leave it open: the
// ranges of its ClusterIPs, and of this host the zone, local sources, and which
// addresses are the primary ones, as far as it has those. nil: it says nothing.
func InCluster(s configs.Settings, n *source.ClusterNode, services []netip.Prefix, addrs []links.Addr) configs.Settings {
	if len(s.ServiceCIDRs) == 0 {
		s.ServiceCIDRs = services
	}
	if n == nil {
		return s
	}
	if s.Zone == "" {
		s.Zone = n.Zone
	}
	if len(s.LocalCIDRs) == 0 && len(s.LocalInterfaces) == 0 {
		s.LocalCIDRs = n.PodCIDRs
	}
	var primary []string
	for _, a := range n.Addrs {
		if slices.ContainsFunc(addrs, func(l links.Addr) bool { return l.Addr == a }) {
			primary = append(primary, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	if i := slices.Index(s.NodePortAddresses, "primary"); i >= 0 && len(primary) > 0 {
		s.NodePortAddresses = slices.Replace(slices.Clone(s.NodePortAddresses), i, i+1, primary...)
	}
	return s
}
