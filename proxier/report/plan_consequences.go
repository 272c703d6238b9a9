package report

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// An Effect is what becomes of connections, or of what is remembered of clients.
type Effect string

// The effects of a change.
const (
	GoOn         Effect = "go-on"     // established connections go on; ipvs mode ends those of an endpoint that left after its drain timeout
	FlowsRemoved Effect = "removed"   // UDP flows are removed from connection tracking: their next packets are new connections
	Predating    Effect = "predating" // UDP flows that are older than the frontend, or that it refused, are removed
	Closed       Effect = "closed"    // established connections are closed
	Kept         Effect = "kept"      // endpoints get no new connections, and keep those that they have
	Forgotten    Effect = "forgotten" // clients with session affinity get any endpoint
	Barred       Effect = "barred"    // new connections are dropped, except for those from Sources; established ones of TCP and SCTP go on
)

// A Consequence is what a change means for connections of one service port.
type Consequence struct {
	ServicePort policy.ServicePortName
	Protocol    source.Protocol
	Effect      Effect

	Frontends []policy.FrontendKey // that these connections are sent to; sorted; empty for Forgotten
	Endpoints []netip.AddrPort     // that have the connections or clients; sorted; empty: all
	Others    int                  // of Forgotten: endpoints that keep their clients
	Sources   []netip.Prefix       // of Barred: who may connect; the host itself, if it may, also from the addresses of Frontends

	Count   int  // connections or flows
	Counted bool // Count is known, see FamilyPlan.Count
}

// Consequences returns what the changes of services mean for connections, in order of
// services and of their ports.
func (p *FamilyPlan) Consequences() (list []Consequence) {
	was, now := make(policy.FrontendIndex), make(policy.FrontendIndex)
	for _, ch := range p.Services {
		was.Add(ch.Old.AllFrontends())
		now.Add(ch.New.AllFrontends())
	}
	for _, ch := range p.Services {
		for _, port := range portsOf(ch.Old) {
			list = append(list, p.leaving(port, now)...)
			list = append(list, forgotten(port, ch.New)...)
		}
		for _, port := range portsOf(ch.New) {
			list = append(list, predating(port, was)...)
			list = append(list, barred(port, was)...)
		}
	}
	return list
}

// A resolvedPort is one port of a service.
type resolvedPort struct {
	policy.ServicePortName
	source.Protocol
	frontends []*policy.Frontend
	pools     []*policy.Pool
}

// portsOf returns the ports of a service, which may be nil.
func portsOf(r *policy.Resolved) (list []*resolvedPort) {
	if r == nil {
		return nil
	}
	for _, p := range r.Pools {
		if n := len(list); n > 0 && list[n-1].ServicePortName == p.ServicePort {
			list[n-1].pools = append(list[n-1].pools, p)
			continue
		}
		port := &resolvedPort{ServicePortName: p.ServicePort, Protocol: p.Protocol, pools: []*policy.Pool{p}}
		for _, f := range r.Frontends {
			if f.ServicePort == p.ServicePort {
				port.frontends = append(port.frontends, f)
			}
		}
		list = append(list, port)
	}
	return list
}

func (p *resolvedPort) consequence(e Effect) Consequence {
	return Consequence{ServicePort: p.ServicePortName, Protocol: p.Protocol, Effect: e}
}

// leaving returns what becomes of connections to frontends that go, to endpoints that
// leave the others, and to those that only keep what they have.
func (p *FamilyPlan) leaving(port *resolvedPort, now policy.FrontendIndex) (list []Consequence) {
	effect := GoOn
	if port.Protocol == source.UDP {
		effect = FlowsRemoved
	}
	gone, left := port.consequence(effect), port.consequence(effect)
	closed, kept := port.consequence(Closed), port.consequence(Kept)
	for _, f := range port.frontends {
		next := now.Find(f)
		ends := p.closing(f, next)
		closed.add(f.Key, ends)
		if next == nil {
			if len(f.Endpoints()) > len(ends) {
				gone.Frontends = append(gone.Frontends, f.Key)
			}
			continue
		}
		if len(p.Host.Left(f, next)) > 0 && !p.closesLeft(f) {
			gone.Frontends = append(gone.Frontends, f.Key)
		}
		left.add(f.Key, slices.DeleteFunc(lostEndpoints(f, next, (*policy.Pool).Present, (*policy.Pool).Has), func(a netip.AddrPort) bool {
			return slices.Contains(ends, a)
		}))
		kept.add(f.Key, lostEndpoints(f, next, (*policy.Pool).TargetAddrs, func(p *policy.Pool, a netip.AddrPort) bool { return p.Targeted(a) || !p.Has(a) }))
	}
	for _, c := range []Consequence{gone, left, closed, kept} {
		if len(c.Frontends) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// closing returns the endpoints of a frontend whose connections are closed; next replaces it,
// unless it is nil.
func (p *FamilyPlan) closing(f, next *policy.Frontend) []netip.AddrPort {
	switch {
	case p.Fresh, f.Key.Protocol == source.UDP:
		return nil
	case next != nil && p.closesLeft(f) && len(p.Host.Left(f, next)) > 0:
		return f.Endpoints()
	case next != nil:
		return next.NewlyClosed(f)
	case f.ClosesRemoved():
		return f.Endpoints()
	}
	return nil
}

// closesLeft reports whether connections to addresses that a frontend loses are closed.
func (p *FamilyPlan) closesLeft(f *policy.Frontend) bool {
	return !p.Fresh && f.Key.Protocol != source.UDP && f.ClosesRemoved()
}

// add adds endpoints of a frontend, if there are any.
func (c *Consequence) add(key policy.FrontendKey, endpoints []netip.AddrPort) {
	if len(endpoints) == 0 {
		return
	}
	c.Frontends = append(c.Frontends, key)
	c.Endpoints = lists.Sorted(append(c.Endpoints, endpoints...))
}

// lostEndpoints returns those endpoints of a frontend's routes that the same route no longer holds
// after it.
func lostEndpoints(f, next *policy.Frontend, of func(*policy.Pool) []netip.AddrPort, holds func(*policy.Pool, netip.AddrPort) bool) (list []netip.AddrPort) {
	for _, r := range [][2]*policy.Pool{{f.Outside.Pool, next.Outside.Pool}, {f.FromLocal.Pool, next.FromLocal.Pool}} {
		for _, a := range of(r[0]) {
			if !holds(r[1], a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// refused reports whether a frontend balanced nothing for some sources.
func refused(f *policy.Frontend) bool {
	return f.Outside.Action != policy.Balance || f.FromLocal.Action != policy.Balance
}

// predating returns that flows are removed which a UDP frontend did not balance.
func predating(port *resolvedPort, was policy.FrontendIndex) []Consequence {
	c := port.consequence(Predating)
	for _, f := range port.frontends {
		if old := was.Find(f); port.Protocol == source.UDP && f.Balances() && (old == nil || refused(old)) {
			c.Frontends = append(c.Frontends, f.Key)
		}
	}
	if len(c.Frontends) == 0 {
		return nil
	}
	return []Consequence{c}
}

// forgotten returns whose clients get another endpoint. A pool keeps its clients by its
// name; new may be nil.
func forgotten(port *resolvedPort, now *policy.Resolved) (list []Consequence) {
	for _, p := range port.pools {
		if p.Affinity == 0 || len(p.Targets) == 0 {
			continue
		}
		c := port.consequence(Forgotten)
		next := now.Pool(p)
		if next == nil || next.Affinity == 0 {
			list = append(list, c)
			continue
		}
		c.Endpoints = lists.Keep(p.TargetAddrs(), func(a netip.AddrPort) bool { return !next.Targeted(a) })
		if c.Others = len(p.Targets) - len(c.Endpoints); len(c.Endpoints) > 0 {
			list = append(list, c)
		}
	}
	return list
}

// barred returns the frontends that fewer clients may use than before: one for each list of
// those who still may.
func barred(port *resolvedPort, was policy.FrontendIndex) (list []Consequence) {
	for _, f := range port.frontends {
		if old := was.Find(f); old == nil || !f.Bars(old) {
			continue
		}
		sources := lists.Keep(f.SourceRanges, func(p netip.Prefix) bool { return p != netip.PrefixFrom(f.Key.Addr, f.Key.Addr.BitLen()) })
		i := slices.IndexFunc(list, func(c Consequence) bool { return slices.Equal(c.Sources, sources) })
		if i < 0 {
			i = len(list)
			list = append(list, port.consequence(Barred))
			list[i].Sources = sources
		}
		list[i].Frontends = append(list[i].Frontends, f.Key)
	}
	return list
}
