package proxier

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// The groups of endpoints, of which the first that has any is used.
const (
	readyGroup   = iota
	unsureGroup  // ready, and their check has no result, or fails where those are used
	leavingGroup // terminating, still serving
	unsureLeavingGroup
	groupCount
)

// leaving reports whether the endpoints of a group terminate: they are taken as they are.
func leaving(group int) bool { return group >= leavingGroup }

// grouped returns the endpoints of a list that can be used, by group.
func grouped(svc Subject, list []*source.Endpoint, useFailed bool) (groups [groupCount][]*source.Endpoint) {
	for _, e := range list {
		g := readyGroup
		switch state := stateOf(svc, e); {
		case state == ready:
		case state == terminating:
			g = leavingGroup
		case state != checking && !(state == failed && useFailed):
			continue
		case isReady(svc.Service, e):
			g = unsureGroup
		default:
			g = unsureLeavingGroup
		}
		groups[g] = append(groups[g], e)
	}
	return groups
}

// ofTiers keeps the lowest tiers that together have at least minUp endpoints.
func ofTiers(list []*source.Endpoint, minUp uint16) []*source.Endpoint {
	var counts tierCounts
	for _, e := range list {
		counts.add(e)
	}
	last := counts.last(minUp)
	if last == maxTiers-1 {
		return list
	}
	return keep(list, func(e *source.Endpoint) bool { return int(e.Tier) <= last })
}

// tierCounts are how many endpoints there are of each tier.
type tierCounts [maxTiers]int

func (c *tierCounts) add(e *source.Endpoint) { c[min(e.Tier, maxTiers-1)]++ }

// last returns the highest tier that is needed for minUp endpoints.
func (c *tierCounts) last(minUp uint16) int {
	sum := 0
	for tier, n := range c {
		if sum += n; sum >= max(1, int(minUp)) {
			return tier
		}
	}
	return maxTiers - 1
}

// maxTiers is how many tiers there are.
const maxTiers = source.MaxTier + 1

// What becomes of connections to a service of which no endpoint passes its check, as
// all_failed of files has it.
const (
	useAll    = "use_all" // all that fail are used
	refuseAll = "refuse"
)

// AllFail returns all_failed of a service if no endpoint passes its check of those of a family that
// could be used, or of those that serve a port where some do not serve every port; else it is empty.
func (s Subject) AllFail() string {
	if s.HealthCheck == nil {
		return ""
	}
	ports := []*source.Port{nil}
	if slices.ContainsFunc(s.Endpoints, servesSome) {
		ports = ports[:0]
		for i := range s.Ports {
			ports = append(ports, &s.Ports[i])
		}
	}
	for _, fam := range []Family{IPv4, IPv6} {
		for _, p := range ports {
			if setting := s.allFail(fam, p); setting != "" && serves(s.Service, fam) {
				return setting
			}
		}
	}
	return ""
}

// allFail is AllFail for one family, and for one port unless that is nil. One without a result
// does not pass, but is not refused.
func (s Subject) allFail(fam Family, p *source.Port) string {
	if s.HealthCheck == nil {
		return ""
	}
	setting, fails := allFailed(s.HealthCheck), false
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if FamilyOf(e.Addr) != fam || p != nil && e.Port(*p) == 0 {
			continue
		}
		switch state := stateOf(s, e); {
		case state == ready || state == terminating || state == checking && setting == refuseAll:
			return ""
		case state == failed:
			fails = true
		}
	}
	if !fails {
		return ""
	}
	return setting
}

// allFailAt is allFail for what a frontend sends its packets to.
func (s Subject) allFailAt(f *Frontend) string {
	i := slices.IndexFunc(s.Ports, func(p source.Port) bool { return p.Name == f.ServicePort.Port })
	if i < 0 {
		return ""
	}
	return s.allFail(FamilyOf(f.Key.Addr), &s.Ports[i])
}

// nearOfTiers keeps the preferred endpoints of each tier, in the order of list.
func nearOfTiers(svc Subject, list []*source.Endpoint, node *Node) []*source.Endpoint {
	if !slices.ContainsFunc(list, func(e *source.Endpoint) bool { return e.Tier != list[0].Tier }) {
		return near(svc.TrafficDistribution, list, node)
	}
	use := make(map[*source.Endpoint]bool)
	for tier := range uint8(maxTiers) {
		of := keep(list, func(e *source.Endpoint) bool { return min(e.Tier, maxTiers-1) == tier })
		for _, e := range near(svc.TrafficDistribution, of, node) {
			use[e] = true
		}
	}
	return keep(list, func(e *source.Endpoint) bool { return use[e] })
}

// near keeps only the preferred endpoints, if there are any.
func near(d source.TrafficDistribution, ready []*source.Endpoint, node *Node) []*source.Endpoint {
	if d == source.AsHinted {
		return hinted(ready, node)
	}
	if d == source.PreferSameNode {
		if here := keep(ready, func(e *source.Endpoint) bool { return isLocal(e, node) }); len(here) > 0 {
			return here
		}
	}
	if d != source.Evenly && node.Zone != "" {
		if zone := keep(ready, func(e *source.Endpoint) bool { return e.Zone == node.Zone }); len(zone) > 0 {
			return zone
		}
	}
	return ready
}

// hinted keeps the endpoints with a hint for this node, if all have node hints, or
// else for its zone, if all have zone hints (kube-proxy, topologyModeFromHints).
func hinted(ready []*source.Endpoint, node *Node) []*source.Endpoint {
	for _, by := range []struct {
		name string
		of   func(*source.Hints) []string
	}{
		{node.Name, func(h *source.Hints) []string { return h.Nodes }},
		{node.Zone, func(h *source.Hints) []string { return h.Zones }},
	} {
		if slices.ContainsFunc(ready, func(e *source.Endpoint) bool { return e.Hints == nil || len(by.of(e.Hints)) == 0 }) {
			continue
		}
		if meant := keep(ready, func(e *source.Endpoint) bool { return slices.Contains(by.of(e.Hints), by.name) }); len(meant) > 0 {
			return meant
		}
	}
	return ready
}
