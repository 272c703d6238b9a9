package policy

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// depart splits endpoints that get no new connections into those that keep what they have,
// and those whose connections are closed.
func (s Subject) depart(list []*source.Endpoint, proto source.Protocol, use failedUse) (kept, closed []*source.Endpoint) {
	kept = lists.Keep(list, func(e *source.Endpoint) bool { return !s.closes(e, proto, use) })
	return kept, without(list, kept)
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

// Down returns the endpoints that keep connections although their check fails, by either route.
func (f *Frontend) Down() []netip.AddrPort {
	return lists.Sorted(slices.Concat(f.Outside.Pool.Down, f.Local.Pool.Down))
}

// Closed returns the endpoints whose connections are closed, and which no route has.
func (f *Frontend) Closed() []netip.AddrPort {
	return slices.DeleteFunc(lists.Sorted(slices.Concat(f.Outside.Pool.Closed, f.Local.Pool.Closed)), f.Has)
}

// NewlyClosed returns the endpoints whose connections are to be closed where f replaces another frontend.
// Whether those of an endpoint that was removed are is for the service as it is now.
func (f *Frontend) NewlyClosed(was *Frontend) []netip.AddrPort {
	before := was.Closed()
	list := slices.DeleteFunc(f.Closed(), func(a netip.AddrPort) bool { return lists.InSorted(before, a) })
	if !f.ClosesRemoved() {
		return list
	}
	return lists.Sorted(append(list, slices.DeleteFunc(was.Endpoints(), f.Has)...))
}

// Dead returns the endpoints that may not answer any more.
func (f *Frontend) Dead() []netip.AddrPort { return lists.Sorted(append(f.Down(), f.Closed()...)) }

// Has reports whether connections may be at an endpoint.
func (f *Frontend) Has(endpoint netip.AddrPort) bool {
	return f.Outside.Pool.Has(endpoint) || f.Local.Pool.Has(endpoint)
}

// ClosesRemoved reports whether connections of endpoints that are removed are closed.
func (f *Frontend) ClosesRemoved() bool { return f.Outside.Pool.CloseRemoved }

// Left returns the addresses of a frontend that the next one, which may be nil, has not.
func (h *Host) Left(f, next *Frontend) []netip.Addr {
	return AddrsBut(h.Addrs(f), h.AddrsIfAny(next))
}

// AddrPort returns what packets are sent to, without the protocol.
func (f *Frontend) AddrPort() netip.AddrPort { return netip.AddrPortFrom(f.Key.Addr, f.Key.Port) }

// rangeOf returns the source range that has an address, if one has.
func (f *Frontend) rangeOf(a netip.Addr) (netip.Prefix, bool) {
	i, found := slices.BinarySearchFunc(f.SourceRanges, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if found {
		return f.SourceRanges[i], true
	}
	if i == 0 || !f.SourceRanges[i-1].Contains(a) {
		return netip.Prefix{}, false
	}
	return f.SourceRanges[i-1], true
}

// Moves reports whether packets of this route may go elsewhere by another one.
func (r Route) Moves(to Route) bool { return r.Action != to.Action || !to.Pool.covers(r.Pool) }

// Has reports whether a flow may be at an endpoint: one that gets new flows, or
// one that keeps what it has.
func (p *Pool) Has(endpoint netip.AddrPort) bool {
	return p.Targeted(endpoint) || lists.InSorted(p.Kept, endpoint)
}

// covers reports whether flows may be at each endpoint at which those of o may be.
func (p *Pool) covers(o *Pool) bool {
	return p == o || !slices.ContainsFunc(o.Present(), func(a netip.AddrPort) bool { return !p.Has(a) })
}

// Present returns all endpoints that a flow may be at, in no order.
func (p *Pool) Present() []netip.AddrPort { return append(p.TargetAddrs(), p.Kept...) }

// Endpoints returns those of both routes.
func (f *Frontend) Endpoints() []netip.AddrPort {
	return append(f.Outside.Pool.Present(), f.Local.Pool.Present()...)
}

// Bars reports whether f admits fewer than it did before.
func (f *Frontend) Bars(old *Frontend) bool {
	if !f.Restricted || !old.Restricted {
		return f.Restricted
	}
	within := func(p netip.Prefix) bool {
		q, ok := f.rangeOf(p.Addr())
		return ok && q.Bits() <= p.Bits()
	}
	return slices.ContainsFunc(old.SourceRanges, func(p netip.Prefix) bool { return !within(p) })
}
