package policy

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A pool is the endpoints of one family that serve a port, and what is known of each.
type pool struct {
	w         *World
	s         *source.Service
	endpoints []*source.Endpoint
}

// pool returns the endpoints of one family that serve a port of a service.
func (w *World) pool(s *source.Service, port source.Port, four bool) pool {
	p := pool{w: w, s: s}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Addr.Is4() == four && e.Port(port) != 0 {
			p.endpoints = append(p.endpoints, e)
		}
	}
	return p
}

// A place says whether endpoints of all nodes are meant, or those of this node only.
type place int

const (
	anywhere place = iota
	here
)

// usable returns the endpoints that get new connections: those of the first rank that has any, of the
// tiers that are used, and near enough. Of this node alone, where it has none of those, it is those that
// serve while they terminate.
func (p pool) usable(where place) []*source.Endpoint {
	first := lowest + 1
	for _, e := range p.endpoints {
		first = min(first, p.rank(e))
	}
	if first > lowest {
		return nil
	}
	best := p.ofRank(first)
	wanted := func(e *source.Endpoint) bool { return first >= leaving || p.isWanted(e, best) }
	list := keep(best, wanted)
	switch {
	case where == here:
		if list = keep(list, p.w.Host.runs); len(list) == 0 {
			list = keep(keep(p.ofRank(leaving), wanted), p.w.Host.runs)
		}
	case first < leaving:
		list = p.near(list)
	}
	return list
}

// isWanted reports whether the tier of an endpoint is used: whether fewer than min_up of some usable
// endpoints are in the tiers before it.
func (p pool) isWanted(e *source.Endpoint, usable []*source.Endpoint) bool {
	before := keep(usable, func(o *source.Endpoint) bool { return o.Tier < e.Tier })
	return len(before) < max(1, int(p.s.MinUp))
}

// The ranks of endpoints: those of the first that has any are used. An endpoint whose check has no
// answer yet comes after those that pass.
const (
	ready = iota
	readyUnasked
	leaving
	leavingUnasked
	lowest = leavingUnasked
)

// rank returns the rank of an endpoint, or a higher number if it can not be used.
func (p pool) rank(e *source.Endpoint) int {
	is := p.known(e).Check
	rank := lowest + 1
	switch {
	case !p.isCandidate(e):
		return rank
	case p.isReady(e):
		rank = ready
	default:
		rank = leaving
	}
	switch {
	case p.s.HealthCheck == nil, is == Passed, p.allFail():
		return rank
	case is == Unknown:
		return rank + 1
	}
	return lowest + 1
}

func (p pool) ofRank(rank int) []*source.Endpoint {
	return keep(p.endpoints, func(e *source.Endpoint) bool { return p.rank(e) == rank })
}

// allFail reports whether no endpoint passes its check, one fails, and all are used for that.
func (p pool) allFail() bool {
	has := func(c Check) bool {
		return slices.ContainsFunc(p.endpoints, func(o *source.Endpoint) bool { return p.isCandidate(o) && p.known(o).Check == c })
	}
	return !p.s.HealthCheck.Refuse && !has(Passed) && has(Failed)
}

// isCandidate reports whether an endpoint could get new connections as far as its check does not matter.
func (p pool) isCandidate(e *source.Endpoint) bool {
	wanted := !e.Disabled && e.Weight > 0 && !p.known(e).Drained
	return wanted && (p.isReady(e) || e.Serving && e.Terminating)
}

func (p pool) isReady(e *source.Endpoint) bool { return e.Ready || p.s.PublishNotReady }

func (p pool) known(e *source.Endpoint) Known { return p.w.Known[p.s.Key][p.s.EndpointAt(e)] }

// share returns the share of new connections of an endpoint that is used: its weight, which comes in tenths
// while it starts slowly.
func (p pool) share(e *source.Endpoint) int {
	const all = 10
	if now := p.known(e).Share; p.s.SlowStart > 0 && now > 0 {
		return int(e.Weight) * now
	}
	return int(e.Weight) * all
}

// near returns, of each tier, the endpoints that traffic_distribution prefers: those of this node or
// zone while there is one. Hints of Kubernetes say it for each endpoint.
func (p pool) near(ready []*source.Endpoint) (list []*source.Endpoint) {
	node := func(e *source.Endpoint) bool { return p.w.Host.runs(e) }
	zone := func(e *source.Endpoint) bool { zone := e.Extras().Zone; return zone != "" && zone == p.w.Host.Zone }
	var steps []func(*source.Endpoint) bool
	switch p.s.TrafficDistribution {
	case source.AsHinted:
		return p.hinted(ready)
	case source.PreferSameNode:
		steps = append(steps, node, zone)
	case source.PreferSameZone:
		steps = append(steps, zone)
	}
	for tier := range uint8(source.MaxTier + 1) {
		of := keep(ready, func(e *source.Endpoint) bool { return e.Tier == tier })
		for _, isNear := range steps {
			if closest := keep(of, isNear); len(closest) > 0 {
				of = closest
				break
			}
		}
		list = append(list, of...)
	}
	return list
}

func hints(e *source.Endpoint) source.Hints {
	if h := e.Extras().Hints; h != nil {
		return *h
	}
	return source.Hints{}
}

// hinted returns, of each tier, the endpoints that hints of Kubernetes mean for this node, or else for its
// zone, if all endpoints have such hints.
func (p pool) hinted(ready []*source.Endpoint) (list []*source.Endpoint) {
	host := p.w.Host
	for tier := range uint8(source.MaxTier + 1) {
		of := keep(ready, func(e *source.Endpoint) bool { return e.Tier == tier })
		byNode := keep(of, func(e *source.Endpoint) bool { return len(hints(e).Nodes) > 0 })
		byZone := keep(of, func(e *source.Endpoint) bool { return len(hints(e).Zones) > 0 })
		forNode := keep(byNode, func(e *source.Endpoint) bool { return slices.Contains(hints(e).Nodes, host.Name) })
		forZone := keep(byZone, func(e *source.Endpoint) bool { return slices.Contains(hints(e).Zones, host.Zone) })
		switch {
		case len(byNode) == len(of) && len(forNode) > 0:
			of = forNode
		case len(byZone) == len(of) && len(forZone) > 0:
			of = forZone
		}
		list = append(list, of...)
	}
	return list
}

func keep(in []*source.Endpoint, ok func(*source.Endpoint) bool) (out []*source.Endpoint) {
	for _, e := range in {
		if ok(e) {
			out = append(out, e)
		}
	}
	return out
}
