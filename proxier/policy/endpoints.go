package policy

import (
	"math"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// An endpointSelection says which endpoints of a service are used, in one family: for all
// its ports, or for one port where some endpoints do not serve every port.
type endpointSelection struct {
	targets [2][]*source.Endpoint // by Scope: get new connections
	kept    [2][]*source.Endpoint // by Scope: still there, get no new connections

	anyReady bool      // on any node: of those that pass
	lastTier int       // the highest in use
	failed   failedUse // which of them do not pass their check
}

// choose picks the usable endpoints: those of the first group that has any, of the lowest tiers
// that are enough of them, and near enough. A policy local uses those of them that are on this
// node, or else those here that terminate. Only those that serve a port count where one is given.
func choose(svc Subject, node *Node, fam Family, p *source.Port) endpointSelection {
	var all []*source.Endpoint
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		if FamilyOf(e.Addr) == fam && present(svc, e) && (p == nil || e.Port(*p) != 0) {
			all = append(all, e)
		}
	}
	here := func(list []*source.Endpoint) []*source.Endpoint {
		return lists.Keep(list, func(e *source.Endpoint) bool { return IsLocal(e, node) })
	}
	c := endpointSelection{failed: Peers{svc, fam, p}.failedUse()}
	var groups [groupCount][]*source.Endpoint
	for _, e := range all {
		if g := groupOf(svc, e, c.failed); g < groupCount {
			groups[g] = append(groups[g], e)
		}
	}
	c.anyReady, c.lastTier = len(groups[readyGroup]) > 0, maxTiers-1
	for g, list := range groups {
		if len(list) == 0 {
			continue
		}
		c.targets[ClusterScope] = list
		if g < leavingGroup { // those that terminate are taken as they are
			c.lastTier = lastTier(list, svc.MinUp)
			list = upToTier(list, c.lastTier)
			c.targets[ClusterScope] = nearOfTiers(svc, list, node)
		}
		c.targets[NodeScope] = here(list) // before nearness: policy local is not limited by it
		break
	}
	if len(c.targets[NodeScope]) == 0 {
		c.targets[NodeScope] = here(upToTier(groups[leavingGroup], c.lastTier))
	}
	c.kept[ClusterScope] = without(all, c.targets[ClusterScope])
	c.kept[NodeScope] = without(here(all), c.targets[NodeScope])
	return c
}

// readyHere returns the endpoints of this node that get new connections under policy local and do
// not terminate. Other hosts and load balancers should send connections here only while there are some.
func (c *endpointSelection) readyHere(svc Subject) []*source.Endpoint {
	return lists.Keep(c.targets[NodeScope], func(e *source.Endpoint) bool { return isReady(svc.Service, e) })
}

// LocalReady counts the addresses of the endpoints that health_check_node_port reports, those of
// readyHere; one under several ports is one. A load balancer that asks in one family wants to send packets
// of it; in a family that the service does not have, what is asked for can only be the other.
func LocalReady(svc Subject, node *Node) PerFamily {
	count := func(fam Family) int {
		seen := map[netip.Addr]bool{}
		chosen := choose(svc, node, fam, nil)
		for _, e := range chosen.readyHere(svc) {
			seen[e.Addr] = true
		}
		return len(seen)
	}
	n := PerFamily{IPv4: count(IPv4), IPv6: count(IPv6)}
	if !Serves(svc.Service, IPv4) {
		n.IPv4 = n.IPv6
	} else if !Serves(svc.Service, IPv6) {
		n.IPv6 = n.IPv4
	}
	return n
}

func targetsOf(svc Subject, eps []*source.Endpoint, p source.Port) []Target {
	out := make([]Target, len(eps))
	scale := svc.weightScale()
	for i, e := range eps {
		out[i] = Target{address: addressOf(e.Addr), port: e.Port(p)}
		out[i].Weight, out[i].Settled = svc.weight(e, scale)
	}
	slices.SortFunc(out, Target.compare)
	return slices.CompactFunc(out, func(a, b Target) bool { return a.compare(b) == 0 })
}

// weightScale returns by what weights are multiplied, so that a slow start has whole steps. It
// depends on the file alone: a step of one endpoint then changes no other target.
func (s Subject) weightScale() int {
	if !s.startsSlowly() {
		return 1
	}
	for i := range s.Endpoints {
		if int(s.Endpoints[i].Weight)*SlowStartSteps > math.MaxUint16 {
			return 1 // so large a weight has steps enough
		}
	}
	return SlowStartSteps
}

// SlowStartSteps is in how many steps the share of an endpoint grows: a Condition has tenths.
const SlowStartSteps = 10

// weight returns the weight of an endpoint that is used, at least 1, and what it is without
// a slow start; 0 where the service has none.
func (s Subject) weight(e *source.Endpoint, scale int) (now, settled uint16) {
	if !s.startsSlowly() {
		return e.Weight, 0
	}
	w := int(e.Weight) * scale
	settled = uint16(w)
	if share := s.Conditions.Of(s.Service, e).Share; share > 0 {
		w = max(1, w*int(share)/SlowStartSteps)
	}
	return uint16(w), settled
}

func addrPorts(eps []*source.Endpoint, p source.Port) []netip.AddrPort {
	if len(eps) == 0 {
		return nil
	}
	out := make([]netip.AddrPort, len(eps))
	for i, e := range eps {
		out[i] = netip.AddrPortFrom(e.Addr, e.Port(p))
	}
	return lists.Sorted(out)
}

// without returns the elements of all that are not in some, which is a sub-sequence of it.
func without(all, some []*source.Endpoint) []*source.Endpoint {
	return lists.Keep(all, func(e *source.Endpoint) bool {
		if len(some) > 0 && some[0] == e {
			some = some[1:]
			return false
		}
		return true
	})
}

// States returns what each endpoint of a service is, in their order, to new connections of one family to one port by a
// pool of some scope. Those that get some are Ready, also where they terminate or are Down.
func States(svc Subject, node *Node, fam Family, p source.Port, scope Scope) []EndpointState {
	used := make(map[*source.Endpoint]bool)
	chosen := choose(svc, node, fam, &p)
	for _, e := range chosen.targets[scope] {
		used[e] = true
	}
	out := make([]EndpointState, len(svc.Endpoints))
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		state := StateOf(svc, e)
		switch {
		case FamilyOf(e.Addr) != fam:
			state = OtherFamily
		case e.Port(p) == 0:
			state = OtherPorts
		case !present(svc, e):
			state = Gone
		case used[e]:
			state = Ready
		case scope == NodeScope && !IsLocal(e, node):
			state = OtherNode
		case state == Ready && int(e.Tier) > chosen.lastTier:
			state = Backup
		case state == Ready:
			state = NotNear
		}
		out[i] = state
	}
	return out
}

// closes reports whether the connections of an endpoint that gets no new ones are closed. None is
// for failing before that is settled, nor while others are used though they fail. A UDP flow has no
// end, and an endpoint that fails no answer: such flows go to others at once, and at the deadline of
// a drain, whatever the service says.
func (s Subject) closes(e *source.Endpoint, proto source.Protocol, use failedUse) bool {
	known := s.Conditions.Of(s.Service, e)
	overdue := known.Drained && known.Overdue
	switch {
	case proto == source.UDP:
		return overdue || s.isOut(e, use)
	case s.fails(e) && use == useNone && known.Settled && s.CloseConnections != source.CloseNever:
		return true
	}
	return overdue && s.CloseConnections == source.CloseAlways
}

// isOut reports whether an endpoint fails its check, and is not used for that.
func (s Subject) isOut(e *source.Endpoint, use failedUse) bool {
	return s.fails(e) && use != useFailed && !s.spares(e, use)
}

// fails reports whether the check of an endpoint fails.
func (s Subject) fails(e *source.Endpoint) bool {
	return s.HealthCheck != nil && s.Conditions.Of(s.Service, e).Check == source.CheckFailed
}
