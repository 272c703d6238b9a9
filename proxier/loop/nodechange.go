package loop

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A nodeChange is what differs between two nodes, as Resolve sees them. Addresses
// of a host can come and go all the time (keepalived, containers, IPv6 privacy),
// and few services have to do with them.
type nodeChange struct {
	all   bool                // more than addresses
	addrs map[netip.Addr]bool // of Node.Addrs, that only one of the two has, or has on a link
	ports bool                // Node.NodePortAddrs differ, or what services select of
}

func nodeChangeOf(old, now *policy.Node) nodeChange {
	rest := *old
	rest.Addrs, rest.NodePortAddrs, rest.LoopbackAddrs = now.Addrs, now.NodePortAddrs, now.LoopbackAddrs
	rest.UpAddrs, rest.PrimaryAddrs = now.UpAddrs, now.PrimaryAddrs
	ch := nodeChange{
		all: !rest.Equal(now), addrs: make(map[netip.Addr]bool),
		ports: !slices.Equal(old.NodePortAddrs, now.NodePortAddrs) ||
			!slices.Equal(old.UpAddrs, now.UpAddrs) || !slices.Equal(old.PrimaryAddrs, now.PrimaryAddrs),
	}
	for _, pair := range [][2]*policy.Node{{old, now}, {now, old}} {
		for _, a := range pair[0].Addrs {
			if !pair[1].Owns(a) || pair[0].OwnsOnLink(a) != pair[1].OwnsOnLink(a) {
				ch.addrs[a] = true
			}
		}
	}
	return ch
}

// touches reports whether the service must be resolved again. Resolve and policy.LocalReady ask whether the host
// owns addresses of the service, and of endpoints that name no node; source ranges admit the addresses of the
// host; node ports can be on some of them. A change of the zone touches all services.
func (ch *nodeChange) touches(s *source.Service) bool {
	ranged := len(s.SourceRanges)+len(s.LoadBalancerSourceRanges) > 0 || s.NodePortAddresses != nil
	if ch.all || ranged && (ch.ports || len(ch.addrs) > 0) {
		return true
	}
	for a := range s.Addresses() {
		if ch.addrs[a] {
			return true
		}
	}
	return len(ch.addrs) > 0 && slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool {
		return e.Node == "" && ch.addrs[e.Addr]
	})
}
