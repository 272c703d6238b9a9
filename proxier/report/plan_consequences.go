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
	Cut          Effect = "cut"       // established connections end at once: in place of GoOn, where a mode has no drain timeout left
	Barred       Effect = "barred"    // new connections are dropped, except for those from Sources; established ones of TCP and SCTP go on
)

// A Consequence is what becomes of connections, or of clients, of a service port.
type Consequence struct {
	Service     string           `json:"service"` // with the name of the port
	Protocol    string           `json:"protocol"`
	Effect      Effect           `json:"effect"`
	Frontends   []string         `json:"frontends,omitempty"`   // that connections are sent to, as status writes them; of Forgotten: none
	Endpoints   []netip.AddrPort `json:"endpoints,omitempty"`   // that have the connections or clients; sorted; none: all
	Others      int              `json:"others,omitempty"`      // of Forgotten: endpoints that keep their clients
	Sources     []netip.Prefix   `json:"sources,omitempty"`     // of Barred: who may still connect, besides the host itself; none: nobody
	AtMost      string           `json:"at_most,omitempty"`     // for how long connections go on; none: as long as their ends want
	Connections *int             `json:"connections,omitempty"` // or flows; nil: not known, see FamilyPlan.Count

	keys []policy.FrontendKey // of Frontends
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
	return Consequence{Service: p.ServicePortName.String(), Protocol: p.Protocol.String(), Effect: e}
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
		closed.lost(f.Key, ends)
		if next == nil {
			if len(f.Endpoints()) > len(ends) {
				gone.add(f.Key)
			}
			continue
		}
		if len(p.Host.Left(f, next)) > 0 && !p.closesLeft(f) {
			gone.add(f.Key)
		}
		left.lost(f.Key, slices.DeleteFunc(lostEndpoints(f, next, (*policy.Pool).Present, (*policy.Pool).Has), func(a netip.AddrPort) bool {
			return slices.Contains(ends, a)
		}))
		kept.lost(f.Key, lostEndpoints(f, next, (*policy.Pool).TargetAddrs, func(p *policy.Pool, a netip.AddrPort) bool { return p.Targeted(a) || !p.Has(a) }))
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

// add adds a frontend.
func (c *Consequence) add(key policy.FrontendKey) {
	at := source.PortAddr{AddrPort: netip.AddrPortFrom(key.Addr, key.Port), Protocol: key.Protocol}
	if key.Kind == policy.NodePort {
		at.AddrPort = netip.AddrPortFrom(netip.Addr{}, key.Port)
	}
	c.Frontends, c.keys = append(c.Frontends, addrText(at)), append(c.keys, key)
}

// lost adds endpoints of a frontend, if there are any.
func (c *Consequence) lost(key policy.FrontendKey, endpoints []netip.AddrPort) {
	if len(endpoints) > 0 {
		c.add(key)
		c.Endpoints = lists.Sorted(append(c.Endpoints, endpoints...))
	}
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
			c.add(f.Key)
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
		list[i].add(f.Key)
	}
	return list
}
