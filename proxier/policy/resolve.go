package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// Resolve decides what happens to packets to svc on node, in one family, with what is known
// of its endpoints. It returns nil when the service has nothing in that family.
func Resolve(service *source.Service, known Conditions, node *Node, fam Family) *Resolved {
	svc := Subject{service, known}
	if svc.Disabled || !Serves(svc.Service, fam) {
		return nil
	}
	r := resolver{svc: svc, node: node, fam: fam, partial: slices.ContainsFunc(svc.Endpoints, servesSome)}
	if !r.partial {
		r.chosen = choose(svc, node, fam, nil)
	}
	r.out.Key = svc.Key
	for _, p := range svc.Ports {
		r.port(p)
	}
	r.refusals()
	slices.SortFunc(r.out.Frontends, func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	r.hairpins()
	r.bound()
	r.out.Announced = Announcements(svc, node, fam, r.out.Frontends)
	out := r.out // copy, so that the resolver can be garbage-collected
	return &out
}

// A resolver is the state of one call of Resolve.
type resolver struct {
	svc  Subject
	node *Node
	fam  Family
	out  Resolved

	partial bool              // some endpoints do not serve every port
	chosen  endpointSelection // for all ports, unless partial
}

// port adds the frontends and pools of one service port.
func (r *resolver) port(p source.Port) {
	pools, before := r.pools(p), len(r.out.Frontends)
	vip, localVIP := r.vipRoutes(pools)
	outside, local := r.externalRoutes(pools)
	for _, a := range r.svc.VIPs {
		r.frontend(p, a, VIP, vip, localVIP)
	}
	for _, a := range r.svc.ExternalIPs {
		r.frontend(p, a, External, outside, local)
	}
	for _, a := range r.svc.LoadBalancerIPs {
		r.frontend(p, a, LoadBalancer, outside, local)
	}
	if p.NodePort != 0 {
		p.Port = p.NodePort
		r.frontend(p, r.fam.Unspecified(), NodePort, outside, local)
	}
	for _, pool := range pools {
		if slices.ContainsFunc(r.out.Frontends[before:], func(f *Frontend) bool { return f.Outside.Pool == pool || f.FromLocal.Pool == pool }) {
			r.out.Pools = append(r.out.Pools, pool)
		}
	}
}

func (r *resolver) frontend(p source.Port, a netip.Addr, kind Kind, outside, local Route) {
	if FamilyOf(a) != r.fam || r.isAnothers(p, a, kind) {
		return
	}
	f := &Frontend{
		Key:         FrontendKey{Addr: a, Protocol: p.Protocol, Port: p.Port, Kind: kind},
		ServicePort: ServicePortName{Key: r.svc.Key, Port: p.Name},
		Outside:     outside,
		FromLocal:   local,
	}
	if kind == NodePort && !r.setNodePortAddrs(f) {
		return
	}
	restrict(f, r.svc.Service, r.node)
	r.out.Frontends = append(r.out.Frontends, f)
}

// isAnothers reports whether another service has this address and port.
func (r *resolver) isAnothers(p source.Port, a netip.Addr, kind Kind) bool {
	if len(r.svc.Without) == 0 {
		return false
	}
	if kind == NodePort {
		a = netip.Addr{}
	}
	return slices.Contains(r.svc.Without, source.PortAddr{Protocol: p.Protocol, AddrPort: netip.AddrPortFrom(a, p.Port)})
}

// vipRoutes returns the routes of internal traffic, which are one unless endpoints answer
// clients themselves.
func (r *resolver) vipRoutes(pools [2]*Pool) (outside, local Route) {
	masq, mode := Everyone, r.node.MasqueradeOf(r.svc.Service)
	switch {
	case mode == source.MasqueradeNever:
		masq = NoOne
	case mode == source.MasqueradeAuto && r.svc.InCluster && !r.node.hasLocalSourcesOf(r.fam):
		masq = NoOne // as kube-proxy, whose detection of local sources is for each family
	case mode == source.MasqueradeAuto && r.node.hasLocalSources():
		masq = NonLocal
	}
	route := clusterRoute(pools, masq)
	if r.svc.InternalTrafficPolicy == source.Local {
		route = nodeRoute(pools, masq)
	}
	return r.answeredRoutes(route, route)
}

// externalRoutes returns the routes of external addresses and node ports. Under policy
// local, host processes and local sources are short-circuited to all endpoints. The setting
// of the node is for VIPs alone: only a service has its clients keep their addresses here.
func (r *resolver) externalRoutes(pools [2]*Pool) (outside, local Route) {
	if r.svc.ExternalTrafficPolicy == source.Cluster {
		masq := Everyone
		if r.svc.Masquerade == source.MasqueradeNever {
			masq = HostProcesses
		}
		route := clusterRoute(pools, masq)
		return r.answeredRoutes(route, route)
	}
	outside = nodeRoute(pools, NoOne)
	masq := Everyone // only the host itself can be local
	if r.node.hasLocalSources() {
		masq = HostProcesses
	}
	local = clusterRoute(pools, masq)
	if outside.Action == Reject && local.Action == Reject {
		local = outside
	}
	return r.answeredRoutes(outside, local)
}

// answeredRoutes returns the routes where endpoints answer clients themselves, if they do. The
// answer has the address of the service as its source, which this host has too: it drops it if it
// is to itself or to who is behind it. So host processes and local sources have a route of their
// own, by rules. Outside says whom a mode masquerades that knows no other way.
func (r *resolver) answeredRoutes(outside, local Route) (_, _ Route) {
	if r.svc.Forward.Answers() && local.Action == Balance {
		local.Masquerade = HostProcesses
	}
	return outside, local
}

// clusterRoute balances over all endpoints, and refuses if there are none.
func clusterRoute(pools [2]*Pool, masq Masquerade) Route {
	if len(pools[ClusterScope].Targets) == 0 {
		return Route{Action: Reject, Pool: pools[ClusterScope]}
	}
	return Route{Action: Balance, Masquerade: masq, Pool: pools[ClusterScope]}
}

// nodeRoute balances over the endpoints of this node. Without any it drops if there are
// endpoints elsewhere, so that a client tries another node.
func nodeRoute(pools [2]*Pool, masq Masquerade) Route {
	switch {
	case len(pools[NodeScope].Targets) > 0:
		return Route{Action: Balance, Masquerade: masq, Pool: pools[NodeScope]}
	case len(pools[ClusterScope].Targets) > 0:
		return Route{Action: Drop, Pool: pools[NodeScope]}
	}
	return Route{Action: Reject, Pool: pools[NodeScope]}
}

// refusals sets on which addresses unserved ports are refused: VIPs, and the external addresses that routers send to
// this host, as forwarded packets to these would return. Whether a session is up, and the address serves, does not matter.
func (r *resolver) refusals() {
	for _, a := range r.svc.VIPs {
		switch {
		case FamilyOf(a) != r.fam:
		case r.node.Owns(a):
			r.out.Warnings = append(r.out.Warnings, fmt.Sprintf(
				"%s is also an address of this host: ports of it that no service has are not refused", a))
		default:
			r.out.RefusedAddrs = append(r.out.RefusedAddrs, a)
		}
	}
	if r.svc.Announce&source.BGP == 0 || len(r.svc.ExternalIPs)+len(r.svc.LoadBalancerIPs) == 0 {
		return
	}
	known := make(map[netip.Addr]bool, len(r.out.RefusedAddrs))
	for _, a := range r.out.RefusedAddrs {
		known[a] = true
	}
	for _, a := range r.svc.AnnouncedAddrs() {
		if FamilyOf(a) == r.fam && !known[a] && !r.node.Owns(a) {
			r.out.RefusedAddrs = append(r.out.RefusedAddrs, a)
		}
	}
}

// hairpins adds the pools of all routes that do not masquerade everyone.
func (r *resolver) hairpins() {
	added := make(map[*Pool]bool)
	add := func(route Route) {
		if route.Action == Balance && route.Masquerade != Everyone && !added[route.Pool] {
			added[route.Pool] = true
			r.out.HairpinPools = append(r.out.HairpinPools, route.Pool)
		}
	}
	for _, f := range r.out.Frontends {
		add(f.Outside)
		if !r.svc.Forward.Answers() || r.node.hasLocalSources() { // else only this host goes there
			add(f.FromLocal)
		}
	}
}

// bound adds the addresses that this host must carry for IPVS to balance them. One
// that another interface has is already there, and not ours to remove.
func (r *resolver) bound() {
	for _, f := range r.out.Frontends { // sorted by address
		n := len(r.out.BoundAddrs)
		if a := f.Key.Addr; f.Key.Kind != NodePort && !r.node.Owns(a) && (n == 0 || r.out.BoundAddrs[n-1] != a) {
			r.out.BoundAddrs = append(r.out.BoundAddrs, a)
		}
	}
}

// pools returns both pools of a service port.
func (r *resolver) pools(p source.Port) [2]*Pool {
	var out [2]*Pool
	chosen := r.chosen
	if r.partial {
		chosen = choose(r.svc, r.node, r.fam, &p)
	}
	limits, hash := r.limits(p), Hash{}
	if r.svc.HashOn != source.NotHashed {
		hash = Hash{On: r.svc.HashOn, Endpoints: r.svc.EndpointsOf(r.fam)}
	}
	for scope := range out {
		kept := lists.Keep(chosen.kept[scope], func(e *source.Endpoint) bool { return !r.svc.closes(e, p.Protocol, chosen.failed) })
		closed := without(chosen.kept[scope], kept)
		out[scope] = &Pool{
			ServicePort:  ServicePortName{Key: r.svc.Key, Port: p.Name},
			Scope:        Scope(scope),
			Protocol:     p.Protocol,
			Affinity:     r.svc.Affinity,
			Scheduler:    r.svc.Scheduler,
			Hash:         hash,
			Forward:      r.svc.Forward,
			Limits:       limits,
			Targets:      targetsOf(r.svc, chosen.targets[scope], p),
			Kept:         addrPorts(kept, p),
			Closed:       addrPorts(closed, p),
			Down:         addrPorts(lists.Keep(kept, func(e *source.Endpoint) bool { return r.svc.isOut(e, chosen.failed) }), p),
			CloseRemoved: r.svc.CloseConnections == source.CloseAlways,

			SchedulerFlags: r.svc.SchedulerFlags,
			OnePacket:      r.svc.OnePacket && p.Protocol == source.UDP,
		}
	}
	return out
}

// limits returns those of endpoints at a service port; nil: none has any.
func (r *resolver) limits(p source.Port) map[netip.AddrPort]Limits {
	var out map[netip.AddrPort]Limits
	for i := range r.svc.Endpoints {
		e := &r.svc.Endpoints[i]
		x := e.Extras()
		if x.MaxConnections == 0 || FamilyOf(e.Addr) != r.fam || e.Port(p) == 0 {
			continue
		}
		if out == nil {
			out = map[netip.AddrPort]Limits{}
		}
		out[netip.AddrPortFrom(e.Addr, e.Port(p))] = Limits{Max: x.MaxConnections, Min: x.MinConnections}
	}
	return out
}

// setNodePortAddrs sets which addresses serve the frontend of a node port, and reports whether any does.
func (r *resolver) setNodePortAddrs(f *Frontend) bool {
	sel := r.svc.NodePortAddresses
	if sel == nil {
		return true
	}
	f.Placed = true
	f.NodePortAddrs = lists.Keep(r.node.NodePortAddrsOf(sel), func(a netip.Addr) bool { return FamilyOf(a) == r.fam })
	return len(f.NodePortAddrs) > 0 || r.node.LocalhostNodePorts && r.fam == IPv4
}

// NewState returns the State of services on a node, in one family, with nothing known of their endpoints.
func NewState(fam Family, node *Node, services []*source.Service) *State {
	st, ch := EmptyState(fam, node), NewChanges()
	for _, s := range services {
		ch.Put(st, s.Key, Resolve(s, nil, node, fam))
	}
	return st
}

// AnnouncedAs returns a State with a frontend that is to be announced by these means; nil: there is none.
func (s Subject) AnnouncedAs(means source.Means, node *Node, fam Family) *State {
	r := Resolve(s.Service, s.Conditions, node, fam)
	if r == nil {
		return nil
	}
	for _, n := range r.Announced {
		if n.Means != means || n.Withheld != NotWithheld {
			continue
		}
		for _, f := range r.FrontendsAt(n.Addr) {
			if s.Unready(node, f) == NotWithheld {
				return OnlyFor(node, fam, r, f)
			}
		}
	}
	return nil
}
