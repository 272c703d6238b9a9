package read

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// warn names what a service says that is good, but that nobody can have meant:
// most of it makes connections fail without a word.
func (s *service) warn(r *decode.Reader) {
	s.warnIdle(r)
	s.warnEndpoints(r)
	s.warnRanges(r)
	s.warnHealth(r)
}

func warnAt(r *decode.Reader, path source.Path, msg, hint string) {
	r.Problem(source.Problem{Path: path, Msg: msg, Hint: hint, Warning: true})
}

// warnIdleKey warns of a key that does nothing, if it is the service's own: a default is for others too.
func (s *service) warnIdleKey(r *decode.Reader, key, hint string) {
	if !s.inherits(key) {
		warnAt(r, source.At(key), key+" does nothing", hint)
	}
}

// unbound reports whether the endpoints of a service are not known yet, for they are in another file.
func (s *service) unbound() bool { return s.EndpointsFrom != "" && !s.listed }

// warnIdle warns of keys that do nothing with what else there is.
func (s *service) warnIdle(r *decode.Reader) {
	idle := func(key, hint string) { s.warnIdleKey(r, key, hint) }
	if s.timeout != 0 && !s.clientIP {
		idle("session_affinity_timeout", `it needs session_affinity = "client_ip"`)
	}
	if s.InternalTrafficPolicy == source.Local && len(s.VIPs) == 0 {
		idle("internal_traffic_policy", "it is for vips, and there are none")
	}
	if s.ExternalTrafficPolicy == source.Local && !s.HasNodePort() && len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 {
		idle("external_traffic_policy", "it is for external_ips, load_balancer_ips and node ports, and there are none")
	}
	if s.NodePortAddresses != nil && !hasNodePorts(s) {
		idle("node_port_addresses", "no port has a node_port")
	}
	zoned := slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Extras().Zone != "" })
	if s.TrafficDistribution == source.PreferSameZone && !zoned && len(s.Endpoints) > 0 {
		idle("traffic_distribution", "no endpoint has a zone")
	}
}

// warnEndpoints warns of connections that no endpoint takes.
func (s *service) warnEndpoints(r *decode.Reader) {
	enabled := func(e source.Endpoint) bool { return !e.Disabled || !e.Addr.IsValid() }
	weighs := func(e source.Endpoint) bool { return enabled(e) && e.Weight > 0 || !e.Addr.IsValid() }
	switch {
	case len(s.VIPs)+len(s.ExternalIPs)+len(s.LoadBalancerIPs) == 0 && !s.HasNodePort(): // nothing can reach it anyway
		return
	case s.unbound():
		return
	case !s.listed:
		warnAt(r, nil, fmt.Sprintf("service %s has no key endpoints, so its connections are refused", source.Excerpt(s.Name)), "write endpoints = [] if that is meant")
		return
	case len(s.Endpoints) == 0:
		return
	case !slices.ContainsFunc(s.Endpoints, enabled):
		warnAt(r, source.At("endpoints"), "no endpoint is enabled, so new connections are refused", "")
		return
	case !slices.ContainsFunc(s.Endpoints, weighs):
		warnAt(r, source.At("endpoints"), "all endpoints have weight 0, so new connections are refused", "")
		return
	}
	for _, is := range families {
		if slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return is.of(e.Addr) || !e.Addr.IsValid() }) {
			continue
		}
		if at, a := s.firstAddr(is); at != nil {
			warnAt(r, at, fmt.Sprintf("no endpoint is %s, so connections to %s are refused", is.name, a), "")
		}
	}
}

// warnRanges warns of addresses that nobody may use.
func (s *service) warnRanges(r *decode.Reader) {
	all := slices.Concat(s.VIPs, s.ExternalIPs, s.LoadBalancerIPs)
	s.warnNobody(r, "source_ranges", s.SourceRanges, "the service", all)
	s.warnNobody(r, "load_balancer_source_ranges", s.LoadBalancerSourceRanges, "load_balancer_ips", s.LoadBalancerIPs)
}

// warnNobody warns of the addresses of a family in which the ranges of a key, if it has any, have none.
func (s *service) warnNobody(r *decode.Reader, key string, ranges []netip.Prefix, whose string, addrs []netip.Addr) {
	if len(ranges) == 0 {
		return
	}
	hint := ""
	if s.inherits(key) {
		hint = ofDefaults(key)
	}
	for _, is := range families {
		within := func(p netip.Prefix) bool { return is.of(p.Addr()) || !p.IsValid() }
		if slices.ContainsFunc(addrs, is.of) && !slices.ContainsFunc(ranges, within) {
			warnAt(r, source.At(key), fmt.Sprintf("no range is %s, so nobody can use the %s addresses of %s", is.name, is.name, whose), hint)
		}
	}
}

// An ipFamily is one of the two.
type ipFamily struct {
	name string
	of   func(netip.Addr) bool
}

var families = []ipFamily{{"IPv4", netip.Addr.Is4}, {"IPv6", netip.Addr.Is6}}

// firstAddr returns the first address of a family that the service has, and where it stands.
func (s *service) firstAddr(is ipFamily) (source.Path, netip.Addr) {
	for _, list := range s.AddressLists() {
		if i := slices.IndexFunc(list.Addrs, is.of); i >= 0 {
			return source.At(list.Key, i), list.Addrs[i]
		}
	}
	return nil, netip.Addr{}
}

// warnHealth warns of keys about endpoints that are alive which do nothing.
func (s *service) warnHealth(r *decode.Reader) {
	idle := func(key, hint string) { s.warnIdleKey(r, key, hint) }
	if s.check != nil && !s.check.none && len(s.Endpoints) == 0 && !s.unbound() {
		idle("health_check", "the service has no endpoints")
	}
	if s.SlowStart > 0 && len(s.Endpoints) < 2 && !s.unbound() {
		idle("slow_start", "it needs two endpoints, and gives one of them less than the other")
	}
	if s.CloseConnections == source.CloseFailed && s.HealthCheck == nil {
		idle("close_connections", `"failed" needs a health_check`)
	}
	if s.MinUp > 1 && len(s.Endpoints) > 0 && !s.inherits("min_up") {
		s.warnMinUp(r)
	}
}

// warnMinUp warns of a number that no tiers before the last can have.
func (s *service) warnMinUp(r *decode.Reader) {
	byTier := func(a, b source.Endpoint) int { return cmp.Compare(a.Tier, b.Tier) }
	first, last := slices.MinFunc(s.Endpoints, byTier).Tier, slices.MaxFunc(s.Endpoints, byTier).Tier
	if first == last {
		warnAt(r, source.At("min_up"), "min_up does nothing", "all endpoints have one tier")
		return
	}
	n := 0
	for _, e := range s.Endpoints {
		if e.Tier < last {
			n++
		}
	}
	if int(s.MinUp) > n {
		warnAt(r, source.At("min_up"), fmt.Sprintf("min_up is %d, more than the endpoints before tier %d, which are %d", s.MinUp, last, n), fmt.Sprintf("tier %d is always used", last))
	}
}
