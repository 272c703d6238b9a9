package proxier

import (
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// depart splits endpoints that get no new connections into those that keep what they have,
// and those whose connections are closed.
func (s Subject) depart(list []*source.Endpoint, proto source.Protocol, use failedUse) (kept, closed []*source.Endpoint) {
	kept = keep(list, func(e *source.Endpoint) bool { return !s.closes(e, proto, use) })
	return kept, without(list, kept)
}

// closes reports whether the connections of an endpoint that gets no new ones are closed. None is
// for failing before that is settled, nor while others are used though they fail. A UDP flow has no
// end and an endpoint that fails no answer: such flows go to others at once, whatever the service says.
func (s Subject) closes(e *source.Endpoint, proto source.Protocol, use failedUse) bool {
	known := s.Conditions.of(s.Service, e)
	switch {
	case proto == source.UDP && s.isOut(e, use):
		return true
	case proto != source.UDP && s.fails(e) && use == useNone && known.Settled && s.CloseConnections != source.CloseNever:
		return true
	case known.Drained && known.Overdue:
		return s.CloseConnections == source.CloseAlways
	}
	return false
}

// isOut reports whether an endpoint fails its check, and is not used for that.
func (s Subject) isOut(e *source.Endpoint, use failedUse) bool {
	return s.fails(e) && use != useFailed && !s.spares(e, use)
}

// fails reports whether the check of an endpoint fails.
func (s Subject) fails(e *source.Endpoint) bool {
	return s.HealthCheck != nil && s.Conditions.of(s.Service, e).Check == CheckFailed
}

// A closer knows which connections of one protocol to close: those of endpoints that left
// whose service has them closed. To remove one from connection tracking closes it: its next
// packet is a new connection to the rules, and what gets it, another endpoint or a rule that
// refuses, answers with a reset. A connection that an endpoint whose check fails has not answered
// yet is removed whatever the service says: its client asks again, and another one answers. It
// implements flowJudge.
type closer struct {
	proto   source.Protocol
	pending endpointsAt // those whose connections are closed
	waiting endpointsAt // those whose connections go to others that have not been answered
}

// endpointsAt are endpoints, by where clients sent the connections.
type endpointsAt map[netip.AddrPort]map[netip.AddrPort]struct{}

func newCloser(proto source.Protocol) *closer {
	return &closer{proto: proto, pending: make(endpointsAt), waiting: make(endpointsAt)}
}

// synced implements flowJudge.
func (c *closer) synced(s *synced) *look {
	l := &look{}
	was, now := c.index(s.changes)
	for key, f := range now {
		places := s.host.places(f)
		for _, at := range places {
			c.spare(at, f)
		}
		c.pending.note(l, places, newlyClosed(was[key], f))
		c.waiting.note(l, places, newlyDown(was[key], f))
	}
	for key, f := range was {
		if f.closesRemoved() {
			c.pending.note(l, f.at(s.host.left(f, now[key])), f.endpoints())
		}
	}
	if s.all {
		for _, r := range s.services {
			for _, f := range c.frontends(r) {
				c.pending.note(l, s.host.places(f), f.closed())
				c.waiting.note(l, s.host.places(f), f.down())
			}
		}
	}
	return l
}

// index returns the frontends before and after changes, by what packets are addressed to: one
// may move between services.
func (c *closer) index(changes map[source.Key]ServiceChange) (was, now frontendIndex) {
	was, now = make(frontendIndex), make(frontendIndex)
	for _, ch := range changes {
		was.add(c.frontends(ch.Old))
		now.add(c.frontends(ch.New))
	}
	return was, now
}

// frontends returns those of the closer's protocol; r may be nil.
func (c *closer) frontends(r *Resolved) []*Frontend { return ofProtocol(r, c.proto) }

// note notes the connections that clients sent to places, and frontends to endpoints.
func (e endpointsAt) note(l *look, places []netip.AddrPort, endpoints []netip.AddrPort) {
	if len(endpoints) == 0 {
		return
	}
	for _, at := range places {
		l.note(at, frontendChange{former: endpoints})
		if e[at] == nil {
			e[at] = make(map[netip.AddrPort]struct{}, len(endpoints))
		}
		for _, a := range endpoints {
			e[at][a] = struct{}{}
		}
	}
}

// spare forgets to close what a frontend serves again.
func (c *closer) spare(at netip.AddrPort, f *Frontend) {
	down := f.down()
	c.pending.drop(at, f.has)
	c.waiting.drop(at, func(a netip.AddrPort) bool { return f.has(a) && !inSorted(down, a) })
}

func (e endpointsAt) drop(at netip.AddrPort, what func(netip.AddrPort) bool) {
	maps.DeleteFunc(e[at], func(a netip.AddrPort, _ struct{}) bool { return what(a) })
	if len(e[at]) == 0 {
		delete(e, at)
	}
}

func (e endpointsAt) has(at, endpoint netip.AddrPort) bool {
	_, has := e[at][endpoint]
	return has
}

// sorted sorts a list, in its place, and has each element once.
func sorted(list []netip.AddrPort) []netip.AddrPort {
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// inSorted reports whether a sorted list has an endpoint.
func inSorted(list []netip.AddrPort, endpoint netip.AddrPort) bool {
	_, has := slices.BinarySearchFunc(list, endpoint, netip.AddrPort.Compare)
	return has
}

// query implements flowJudge.
func (c *closer) query(l *look) FlowQuery {
	q := FlowQuery{Protocol: c.proto}
	for at, p := range l.changed {
		q.To = append(q.To, at)
		q.At = append(q.At, p.former...)
	}
	q.To, q.At = sorted(q.To), sorted(q.At)
	return q
}

// stale implements flowJudge.
func (c *closer) stale(l *look, f Flow) bool {
	return l.about(f.Dst) && (c.pending.has(f.Dst, f.Reply) || f.Unreplied && c.waiting.has(f.Dst, f.Reply))
}

// rest implements flowJudge.
func (c *closer) rest() { clear(c.pending); clear(c.waiting) }

// newlyClosed returns the endpoints whose connections are to be closed by the change of a
// frontend; was is nil if it is new. Whether those of an endpoint that was removed are is for
// the service as it is now.
func newlyClosed(was, f *Frontend) []netip.AddrPort {
	closed := f.closed()
	if was == nil {
		return closed
	}
	before := was.closed()
	list := slices.DeleteFunc(closed, func(a netip.AddrPort) bool { return inSorted(before, a) })
	if !f.closesRemoved() {
		return list
	}
	return sorted(append(list, slices.DeleteFunc(was.endpoints(), f.has)...))
}

// newlyDown returns the endpoints that a change of a frontend leaves with connections whose check
// fails now; was is nil if it is new.
func newlyDown(was, f *Frontend) []netip.AddrPort {
	if was == nil {
		return f.down()
	}
	before := was.down()
	return slices.DeleteFunc(f.down(), func(a netip.AddrPort) bool { return inSorted(before, a) })
}

// down returns the endpoints that keep connections although their check fails, by either route.
func (f *Frontend) down() []netip.AddrPort {
	return sorted(slices.Concat(f.Outside.Pool.Down, f.Local.Pool.Down))
}

// closed returns the endpoints whose connections are closed, and which no route has.
func (f *Frontend) closed() []netip.AddrPort {
	return slices.DeleteFunc(sorted(slices.Concat(f.Outside.Pool.Closed, f.Local.Pool.Closed)), f.has)
}

// has reports whether connections may be at an endpoint.
func (f *Frontend) has(endpoint netip.AddrPort) bool {
	return f.Outside.Pool.has(endpoint) || f.Local.Pool.has(endpoint)
}

func (f *Frontend) closesRemoved() bool { return f.Outside.Pool.CloseRemoved }

// left returns the addresses of a frontend that the next one, which may be nil, has not.
func (h *Host) left(f, next *Frontend) []netip.Addr {
	return addrsBut(h.Addrs(f), h.addrsIfAny(next))
}

// places returns the addresses and ports that a frontend is reached at.
func (h *Host) places(f *Frontend) []netip.AddrPort { return f.at(h.Addrs(f)) }

// at returns the port of a frontend at each of some addresses.
func (f *Frontend) at(addrs []netip.Addr) []netip.AddrPort {
	list := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		list[i] = netip.AddrPortFrom(a, f.Key.Port)
	}
	return list
}
