package proxier

import (
	"math"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// An endpointSelection says which endpoints of a service are used, in one family: for all
// its ports, or for one port where some endpoints do not serve every port.
type endpointSelection struct {
	targets [2][]*source.Endpoint // by Scope: get new connections
	kept    [2][]*source.Endpoint // by Scope: still there, get no new connections

	useFailed bool // those that fail their check are used
}

// choose picks the usable endpoints: those ready, of the lowest tiers that are enough of them,
// and near enough; where there is none, others as usable says. The endpoints of this node are
// chosen among themselves. Only those that serve a port count where one is given.
func choose(svc Subject, node *Node, fam Family, p *source.Port) endpointSelection {
	var all, local []*source.Endpoint
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		if FamilyOf(e.Addr) != fam || !present(svc, e) || p != nil && e.Port(*p) == 0 {
			continue
		}
		all = append(all, e)
		if isLocal(e, node) {
			local = append(local, e)
		}
	}
	c := endpointSelection{useFailed: svc.usesFailed()}
	c.targets[ClusterScope] = usable(svc, all, c.useFailed, func(ready []*source.Endpoint) []*source.Endpoint {
		return near(svc.TrafficDistribution, ready, node)
	})
	c.targets[LocalScope] = usable(svc, local, c.useFailed, nil)
	c.kept[ClusterScope] = without(all, c.targets[ClusterScope])
	c.kept[LocalScope] = without(local, c.targets[LocalScope])
	return c
}

// usable returns the ready endpoints of list that prefer keeps; where there is none, those
// that have no result of their check yet, then those that terminate, then all that fail their
// check, if useFailed.
func usable(svc Subject, list []*source.Endpoint, useFailed bool, prefer func([]*source.Endpoint) []*source.Endpoint) []*source.Endpoint {
	in := func(state endpointState) []*source.Endpoint {
		return keep(list, func(e *source.Endpoint) bool { return stateOf(svc, e) == state })
	}
	order := []endpointState{ready, checking, terminating}
	if useFailed {
		order = append(order, failed)
	}
	for _, state := range order {
		all := in(state)
		switch {
		case len(all) == 0:
			continue
		case state != terminating:
			all = ofTiers(all, svc.MinUp)
		}
		if prefer != nil && state != terminating {
			return prefer(all)
		}
		return all
	}
	return nil
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

// usesFailed reports whether endpoints that fail their check are used as if they passed.
func (s Subject) usesFailed() bool { return s.allFail() == useAll }

// What becomes of connections to a service of which no endpoint passes its check, as
// all_failed of files has it.
const (
	useAll    = "use_all" // all that fail are used
	refuseAll = "refuse"
)

// allFail returns useAll or refuseAll if the endpoints of the service that could be used all
// fail their check, in both families; else it is empty.
func (s Subject) allFail() string {
	if s.HealthCheck == nil {
		return ""
	}
	fails := false
	for i := range s.Endpoints {
		switch stateOf(s, &s.Endpoints[i]) {
		case ready, checking, terminating:
			return ""
		case failed:
			fails = true
		}
	}
	if !fails {
		return ""
	}
	return allFailed(s.HealthCheck)
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

// isLocal reports whether the endpoint runs on this node.
func isLocal(e *source.Endpoint, node *Node) bool {
	if e.Node != "" {
		return e.Node == node.Name
	}
	return node.Owns(e.Addr)
}

func isReady(svc *source.Service, e *source.Endpoint) bool { return e.Ready || svc.PublishNotReady }

// An endpointState says whether an endpoint is usable: if it is ready, or, where none is, as
// usable says. Of several that are true it is the first of those after terminating, from the last on.
type endpointState uint8

const (
	ready       endpointState = iota
	terminating               // serving, not ready
	checking                  // its check has no result yet
	failed                    // its check
	notReady
	draining
	weightless
	disabled
)

func stateOf(svc Subject, e *source.Endpoint) endpointState {
	known := svc.Conditions.of(svc.Service, e)
	switch {
	case svc.Disabled || e.Disabled:
		return disabled
	case e.Weight == 0:
		return weightless
	case known.Drained:
		return draining
	case !isReady(svc.Service, e) && !(e.Serving && e.Terminating):
		return notReady
	case svc.HealthCheck != nil && known.Check == CheckFailed:
		return failed
	case svc.HealthCheck != nil && known.Check == CheckUnknown:
		return checking
	case isReady(svc.Service, e):
		return ready
	}
	return terminating
}

// present reports whether the endpoint still serves its established connections.
func present(svc Subject, e *source.Endpoint) bool { return isReady(svc.Service, e) || e.Serving }

// localReady counts the addresses of this node's endpoints that health_check_node_port tells
// of: those that get new connections under policy local, and do not terminate; one under
// several ports is one. A load balancer that asks in one family wants to send packets of it;
// in a family that the service does not have, what is asked for can only be the other.
func localReady(svc Subject, node *Node) PerFamily {
	count := func(fam Family) int {
		seen := map[netip.Addr]bool{}
		for _, e := range choose(svc, node, fam, nil).targets[LocalScope] {
			if stateOf(svc, e) != terminating {
				seen[e.Addr] = true
			}
		}
		return len(seen)
	}
	if svc.Disabled {
		return PerFamily{}
	}
	n := PerFamily{IPv4: count(IPv4), IPv6: count(IPv6)}
	if !serves(svc.Service, IPv4) {
		n.IPv4 = n.IPv6
	} else if !serves(svc.Service, IPv6) {
		n.IPv6 = n.IPv4
	}
	return n
}

// servesSome reports whether the endpoint serves only some of the service's ports.
func servesSome(e source.Endpoint) bool {
	for _, n := range e.Ports {
		if n == 0 {
			return true
		}
	}
	return false
}

// pools returns both pools of a service port.
func (r *resolver) pools(p source.Port) [2]*Pool {
	var out [2]*Pool
	use := r.use
	if r.partial {
		use = choose(r.svc, r.node, r.fam, &p)
	}
	for scope := range out {
		kept, closed := r.svc.depart(use.kept[scope], p.Protocol, use.useFailed)
		out[scope] = &Pool{
			ServicePort:  ServicePortName{Key: r.svc.Key, Port: p.Name},
			Scope:        Scope(scope),
			Protocol:     p.Protocol,
			Affinity:     r.svc.Affinity,
			Scheduler:    r.svc.Scheduler,
			Targets:      targets(r.svc, use.targets[scope], p),
			Kept:         addrPorts(kept, p),
			Closed:       addrPorts(closed, p),
			Down:         addrPorts(keep(kept, func(e *source.Endpoint) bool { return r.svc.fails(e) && !use.useFailed }), p),
			CloseRemoved: r.svc.CloseConnections == source.CloseAlways,
		}
	}
	return out
}

// keepUsedPools adds the pools to the result that a frontend of this port refers to.
func (r *resolver) keepUsedPools(pools [2]*Pool) {
	for _, pool := range pools {
		if slices.ContainsFunc(r.out.Frontends, func(f *Frontend) bool {
			return f.Outside.Pool == pool || f.Local.Pool == pool
		}) {
			r.out.Pools = append(r.out.Pools, pool)
		}
	}
}

func targets(svc Subject, eps []*source.Endpoint, p source.Port) []Target {
	out := make([]Target, len(eps))
	scale := svc.weightScale()
	for i, e := range eps {
		out[i] = Target{AddrPort: netip.AddrPortFrom(e.Addr, e.Port(p)), Weight: svc.weight(e, scale)}
	}
	slices.SortFunc(out, func(a, b Target) int { return a.AddrPort.Compare(b.AddrPort) })
	return slices.CompactFunc(out, func(a, b Target) bool { return a.AddrPort == b.AddrPort })
}

// weightScale returns by what weights are multiplied, so that a slow start has whole steps. It
// depends on the file alone: a step of one endpoint then changes no other target.
func (s Subject) weightScale() int {
	if s.SlowStart == 0 {
		return 1
	}
	for i := range s.Endpoints {
		if int(s.Endpoints[i].Weight)*slowStartSteps > math.MaxUint16 {
			return 1 // so large a weight has steps enough
		}
	}
	return slowStartSteps
}

// slowStartSteps is in how many steps the share of an endpoint grows.
const slowStartSteps = 10

// weight returns the weight of an endpoint that is used, at least 1.
func (s Subject) weight(e *source.Endpoint, scale int) uint16 {
	w := int(e.Weight) * scale
	if share := s.Conditions.of(s.Service, e).Share; s.SlowStart > 0 && share > 0 {
		w = max(1, w*int(share)/slowStartSteps)
	}
	return uint16(w)
}

func addrPorts(eps []*source.Endpoint, p source.Port) []netip.AddrPort {
	if len(eps) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(eps))
	for i, e := range eps {
		out[i] = netip.AddrPortFrom(e.Addr, e.Port(p))
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// without returns the elements of all that are not in some, which is a sub-sequence of it.
func without(all, some []*source.Endpoint) []*source.Endpoint {
	return keep(all, func(e *source.Endpoint) bool {
		if len(some) > 0 && some[0] == e {
			some = some[1:]
			return false
		}
		return true
	})
}
