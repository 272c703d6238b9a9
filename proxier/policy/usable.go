package policy

import (
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// The groups of endpoints, of which the first that has any is used. Tiers and traffic_distribution choose within the first two.
const (
	readyGroup            = iota // they pass their check, or have none
	uncheckedGroup               // ready, and their check has no result
	leavingGroup                 // terminating, still serving; they pass, or have no check
	uncheckedLeavingGroup        // terminating, still serving, and their check has no result
	groupCount
)

// leaving reports whether the endpoints of a group terminate: they are taken as they are.
func leaving(group int) bool { return group >= leavingGroup }

// grouped returns the endpoints of a list that can be used, by group.
func grouped(svc Subject, list []*source.Endpoint, use failedUse) (groups [groupCount][]*source.Endpoint) {
	for _, e := range list {
		if g := groupOf(svc, e, use); g < groupCount {
			groups[g] = append(groups[g], e)
		}
	}
	return groups
}

// groupOf returns the group of an endpoint; groupCount: it cannot be used.
func groupOf(svc Subject, e *source.Endpoint, use failedUse) int {
	switch state, spared := StateOf(svc, e), svc.spares(e, use); {
	case state == Ready || spared && isReady(svc.Service, e):
		return readyGroup
	case state == Terminating || spared:
		return leavingGroup
	case state != Checking:
		return groupCount
	case isReady(svc.Service, e):
		return uncheckedGroup
	}
	return uncheckedLeavingGroup
}

// ofTiers keeps the lowest tiers that together have at least minUp endpoints. It also returns the
// highest of them.
func ofTiers(list []*source.Endpoint, minUp uint16) (of []*source.Endpoint, last int) {
	var counts tierCounts
	for _, e := range list {
		counts.add(e)
	}
	last = counts.last(minUp)
	return upToTier(list, last), last
}

// upToTier keeps the endpoints of a tier and of those before it.
func upToTier(list []*source.Endpoint, last int) []*source.Endpoint {
	if last == maxTiers-1 {
		return list
	}
	return lists.Keep(list, func(e *source.Endpoint) bool { return int(e.Tier) <= last })
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

// nearOfTiers keeps the preferred endpoints of each tier, in the order of list.
func nearOfTiers(svc Subject, list []*source.Endpoint, node *Node) []*source.Endpoint {
	if !slices.ContainsFunc(list, func(e *source.Endpoint) bool { return e.Tier != list[0].Tier }) {
		return preferredByDistribution(svc.TrafficDistribution, list, node)
	}
	use := make(map[*source.Endpoint]bool)
	for tier := range uint8(maxTiers) {
		of := lists.Keep(list, func(e *source.Endpoint) bool { return min(e.Tier, maxTiers-1) == tier })
		for _, e := range preferredByDistribution(svc.TrafficDistribution, of, node) {
			use[e] = true
		}
	}
	return lists.Keep(list, func(e *source.Endpoint) bool { return use[e] })
}

// preferredByDistribution keeps only the preferred endpoints, if there are any.
func preferredByDistribution(d source.TrafficDistribution, ready []*source.Endpoint, node *Node) []*source.Endpoint {
	if d == source.AsHinted {
		return hinted(ready, node)
	}
	if d == source.PreferSameNode {
		if here := lists.Keep(ready, func(e *source.Endpoint) bool { return IsLocal(e, node) }); len(here) > 0 {
			return here
		}
	}
	if d != source.Evenly && node.Zone != "" {
		if zone := lists.Keep(ready, func(e *source.Endpoint) bool { return e.Zone == node.Zone }); len(zone) > 0 {
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
		if meant := lists.Keep(ready, func(e *source.Endpoint) bool { return slices.Contains(by.of(e.Hints), by.name) }); len(meant) > 0 {
			return meant
		}
	}
	return ready
}

// A tiersInUse has the highest tier of which endpoints are used. Nil: all are.
type tiersInUse PerFamily

// TiersInUse returns nil where there is one tier only.
func (s Subject) TiersInUse() *tiersInUse {
	if !slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Tier > 0 }) {
		return nil
	}
	counts := map[Family]*tierCounts{IPv4: {}, IPv6: {}}
	use := map[Family]failedUse{IPv4: Peers{s, IPv4, nil}.failedUse(), IPv6: Peers{s, IPv6, nil}.failedUse()}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if fam := FamilyOf(e.Addr); StateOf(s, e) == Ready || s.spares(e, use[fam]) {
			counts[fam].add(e)
		}
	}
	return &tiersInUse{IPv4: counts[IPv4].last(s.MinUp), IPv6: counts[IPv6].last(s.MinUp)}
}

// spare reports whether a ready endpoint is of a tier that is not needed.
func (t *tiersInUse) spare(e *source.Endpoint) bool {
	return t != nil && int(e.Tier) > PerFamily(*t).Of(FamilyOf(e.Addr))
}

// Shown returns the state of an endpoint as status shows it.
func (s Subject) Shown(e *source.Endpoint, t *tiersInUse) EndpointState {
	state, known := StateOf(s, e), s.Conditions.Of(s.Service, e)
	switch {
	case state != Ready:
		return state
	case t.spare(e):
		return Backup
	case s.startsSlowly() && known.Share > 0:
		return SlowStart
	case s.HealthCheck != nil:
		return Up
	}
	return Ready
}
