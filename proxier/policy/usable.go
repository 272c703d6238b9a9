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

// upToTier keeps the endpoints of a tier and of those before it.
func upToTier(list []*source.Endpoint, last int) []*source.Endpoint {
	if last == maxTiers-1 {
		return list
	}
	return lists.Keep(list, func(e *source.Endpoint) bool { return int(e.Tier) <= last })
}

// lastTier returns the highest tier that is needed for minUp endpoints.
func lastTier(list []*source.Endpoint, minUp uint16) int {
	var counts [maxTiers]int
	for _, e := range list {
		counts[min(e.Tier, maxTiers-1)]++
	}
	sum := 0
	for tier, n := range counts {
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
		if zone := lists.Keep(ready, func(e *source.Endpoint) bool { return e.Extras().Zone == node.Zone }); len(zone) > 0 {
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
		if slices.ContainsFunc(ready, func(e *source.Endpoint) bool { h := e.Extras().Hints; return h == nil || len(by.of(h)) == 0 }) {
			continue
		}
		if meant := lists.Keep(ready, func(e *source.Endpoint) bool { return slices.Contains(by.of(e.Extras().Hints), by.name) }); len(meant) > 0 {
			return meant
		}
	}
	return ready
}

// TiersInUse returns the highest tier of which endpoints are used; nil where there is one tier only.
func (s Subject) TiersInUse() *PerFamily {
	if !slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Tier > 0 }) {
		return nil
	}
	last := func(fam Family) int {
		use := Peers{s, fam, nil}.failedUse()
		var list []*source.Endpoint
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; FamilyOf(e.Addr) == fam && (StateOf(s, e) == Ready || s.spares(e, use)) {
				list = append(list, e)
			}
		}
		return lastTier(list, s.MinUp)
	}
	return &PerFamily{IPv4: last(IPv4), IPv6: last(IPv6)}
}

// Shown returns the state of an endpoint as status shows it, with what TiersInUse returned.
func (s Subject) Shown(e *source.Endpoint, tiers *PerFamily) EndpointState {
	state, known := StateOf(s, e), s.Conditions.Of(s.Service, e)
	switch {
	case state != Ready:
		return state
	case tiers != nil && int(e.Tier) > tiers.Of(FamilyOf(e.Addr)):
		return Backup
	case s.startsSlowly() && known.Share > 0:
		return SlowStart
	case s.HealthCheck != nil:
		return Up
	}
	return Ready
}
