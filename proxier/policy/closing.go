package policy

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
)

// Down returns the endpoints that keep connections although their check fails, by either route.
func (f *Frontend) Down() []netip.AddrPort {
	return lists.Sorted(slices.Concat(f.Outside.Pool.Down, f.FromLocal.Pool.Down))
}

// Closed returns the endpoints whose connections are closed, and which no route has.
func (f *Frontend) Closed() []netip.AddrPort {
	return slices.DeleteFunc(lists.Sorted(slices.Concat(f.Outside.Pool.Closed, f.FromLocal.Pool.Closed)), f.Has)
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
	return f.Outside.Pool.Has(endpoint) || f.FromLocal.Pool.Has(endpoint)
}

// ClosesRemoved reports whether connections of endpoints that are removed are closed.
func (f *Frontend) ClosesRemoved() bool { return f.Outside.Pool.CloseRemoved }

// Left returns the addresses of a frontend that the next one, which may be nil, has not.
func (h *Host) Left(f, next *Frontend) []netip.Addr {
	return AddrsBut(h.Addrs(f), h.Addrs(next))
}

// AddrPort returns what packets are sent to, without the protocol.
func (f *Frontend) AddrPort() netip.AddrPort { return netip.AddrPortFrom(f.Key.Addr, f.Key.Port) }

// Moves reports whether packets of this route may go elsewhere by another one.
func (r Route) Moves(to Route) bool {
	return r.Action != to.Action || r.Pool != to.Pool && slices.ContainsFunc(r.Pool.Present(), func(a netip.AddrPort) bool { return !to.Pool.Has(a) })
}

// Has reports whether a flow may be at an endpoint: one that gets new flows, or
// one that keeps what it has.
func (p *Pool) Has(endpoint netip.AddrPort) bool {
	return p.Targeted(endpoint) || lists.InSorted(p.Kept, endpoint)
}

// Present returns all endpoints that a flow may be at, in no order.
func (p *Pool) Present() []netip.AddrPort { return append(p.TargetAddrs(), p.Kept...) }

// Endpoints returns those of both routes.
func (f *Frontend) Endpoints() []netip.AddrPort {
	return append(f.Outside.Pool.Present(), f.FromLocal.Pool.Present()...)
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
