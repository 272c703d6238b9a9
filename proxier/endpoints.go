package proxier

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// An endpointSelection says which endpoints of a service are used, in one family: for all
// its ports, or for one port where some endpoints do not serve every port.
type endpointSelection struct {
	targets [2][]*source.Endpoint // by Scope: get new connections
	kept    [2][]*source.Endpoint // by Scope: still there, get no new connections
}

// choose picks the usable endpoints: those ready, and near enough; where there
// is none, those serving while they terminate. The endpoints of this node are
// chosen among themselves. Only those that serve a port count where one is given.
func choose(svc *source.Service, node *Node, fam Family, p *source.Port) endpointSelection {
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
	var c endpointSelection
	c.targets[ClusterScope] = usable(svc, all, func(ready []*source.Endpoint) []*source.Endpoint {
		return near(svc.TrafficDistribution, ready, node)
	})
	c.targets[LocalScope] = usable(svc, local, nil)
	c.kept[ClusterScope] = without(all, c.targets[ClusterScope])
	c.kept[LocalScope] = without(local, c.targets[LocalScope])
	return c
}

// usable returns the ready endpoints of list that prefer keeps, or else the terminating ones.
func usable(svc *source.Service, list []*source.Endpoint, prefer func([]*source.Endpoint) []*source.Endpoint) []*source.Endpoint {
	in := func(state endpointState) []*source.Endpoint {
		return keep(list, func(e *source.Endpoint) bool { return stateOf(svc, e) == state })
	}
	all := in(ready)
	if len(all) == 0 {
		return in(terminating)
	}
	if prefer != nil {
		return prefer(all)
	}
	return all
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

// An endpointState says whether an endpoint is usable: if it is ready, or, where none is, if it terminates.
type endpointState uint8

const (
	ready endpointState = iota
	terminating
	notReady
	weightless
)

// endpointStates are their names, as status and metrics have them.
var endpointStates = []string{ready: "ready", terminating: "terminating", notReady: "not ready", weightless: "weight 0"}

func (s endpointState) String() string { return endpointStates[s] }

func stateOf(svc *source.Service, e *source.Endpoint) endpointState {
	switch {
	case e.Weight == 0:
		return weightless
	case isReady(svc, e):
		return ready
	case e.Serving && e.Terminating:
		return terminating
	}
	return notReady
}

// present reports whether the endpoint still serves its established connections.
func present(svc *source.Service, e *source.Endpoint) bool { return isReady(svc, e) || e.Serving }

// localReady counts the addresses of this node's endpoints that
// health_check_node_port tells of: one under several ports is one. A load balancer
// that asks in one family wants to send packets of it; in a family that the service
// does not have, what is asked for can only be the other.
func localReady(svc *source.Service, node *Node) PerFamily {
	seen := map[netip.Addr]bool{}
	var n PerFamily
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		switch {
		case !isLocal(e, node) || !isReady(svc, e) || e.Weight == 0 || seen[e.Addr]:
		case FamilyOf(e.Addr) == IPv4:
			n.IPv4++
		default:
			n.IPv6++
		}
		seen[e.Addr] = true
	}
	if !serves(svc, IPv4) {
		n.IPv4 = n.IPv6
	} else if !serves(svc, IPv6) {
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
		out[scope] = &Pool{
			ServicePort: ServicePortName{Key: r.svc.Key, Port: p.Name},
			Scope:       Scope(scope),
			Protocol:    p.Protocol,
			Affinity:    r.svc.Affinity,
			Scheduler:   r.svc.Scheduler,
			Targets:     targets(use.targets[scope], p),
			Kept:        addrPorts(use.kept[scope], p),
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

func targets(eps []*source.Endpoint, p source.Port) []Target {
	out := make([]Target, len(eps))
	for i, e := range eps {
		out[i] = Target{AddrPort: netip.AddrPortFrom(e.Addr, e.Port(p)), Weight: e.Weight}
	}
	slices.SortFunc(out, func(a, b Target) int { return a.AddrPort.Compare(b.AddrPort) })
	return slices.CompactFunc(out, func(a, b Target) bool { return a.AddrPort == b.AddrPort })
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
