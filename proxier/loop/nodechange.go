package loop

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// touchedBy returns a function that reports whether a service must be resolved again when a node changes. Addresses
// of a host can come and go all the time (keepalived, containers, IPv6 privacy), and few services have to do with
// them: Resolve and policy.LocalReady ask whether the host
// owns addresses of the service, and of endpoints that name no node; source ranges admit the addresses of the
// host; node ports can be on some of them. A change of the zone touches all services.
func touchedBy(old, now *policy.Node) func(*source.Service) bool {
	rest := *old
	rest.Addrs, rest.NodePortAddrs, rest.LoopbackAddrs = now.Addrs, now.NodePortAddrs, now.LoopbackAddrs
	rest.UpAddrs, rest.PrimaryAddrs = now.UpAddrs, now.PrimaryAddrs
	all := !rest.Equal(now) // more than addresses
	ports := !slices.Equal(old.NodePortAddrs, now.NodePortAddrs) ||
		!slices.Equal(old.UpAddrs, now.UpAddrs) || !slices.Equal(old.PrimaryAddrs, now.PrimaryAddrs)
	addrs := make(map[netip.Addr]bool) // that only one of the two has, or has on a link
	for _, pair := range [][2]*policy.Node{{old, now}, {now, old}} {
		for _, a := range pair[0].Addrs {
			if !pair[1].Owns(a) || pair[0].OwnsOnLink(a) != pair[1].OwnsOnLink(a) {
				addrs[a] = true
			}
		}
	}
	return func(s *source.Service) bool {
		ranged := len(s.SourceRanges)+len(s.LoadBalancerSourceRanges) > 0 || s.NodePortAddresses != nil
		if all || ranged && (ports || len(addrs) > 0) {
			return true
		}
		for a := range s.Addresses() {
			if addrs[a] {
				return true
			}
		}
		return len(addrs) > 0 && slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Extras().Node == "" && addrs[e.Addr] })
	}
}
