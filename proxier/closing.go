package proxier

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
	known := s.Conditions.of(s.Service, e)
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
	return s.HealthCheck != nil && s.Conditions.of(s.Service, e).Check == source.CheckFailed
}

// changeOf returns what became of a frontend; was is nil if it is new, now is nil if it is gone.
func changeOf(was, now *Frontend) (c frontendChange) {
	if was == nil {
		c.appeared, c.whole, c.former, c.closed = true, true, now.down(), now.closed()
		return c
	}
	if now == nil {
		c.former, c.dead = lists.Sorted(was.endpoints()), was.dead()
		if was.closesRemoved() {
			c.closed = c.former
		}
		return c
	}
	c.appeared, c.closed = opens(was, now), newlyClosed(was, now)
	c.whole = c.appeared || now.bars(was)
	c.former = lists.Sorted(slices.Concat(
		lostTargets(was.Outside.Pool, now.Outside.Pool), lostTargets(was.Local.Pool, now.Local.Pool),
		but(now.down(), was.down()), slices.DeleteFunc(was.endpoints(), now.has), c.closed,
	))
	c.dead = slices.DeleteFunc(was.dead(), now.has)
	return c
}

// lostTargets returns the targets of a pool that another one does not have.
func lostTargets(was, now *Pool) []netip.AddrPort {
	if was == now {
		return nil
	}
	return slices.DeleteFunc(was.targets(), now.targeted)
}

// opens reports whether a frontend balances packets that it refused before.
func opens(was, now *Frontend) bool {
	opens := func(was, now Route) bool { return was.Action != Balance && now.Action == Balance }
	return opens(was.Outside, now.Outside) || opens(was.Local, now.Local)
}

// newlyClosed returns the endpoints whose connections are to be closed by the change of a
// frontend. Whether those of an endpoint that was removed are is for the service as it is now.
func newlyClosed(was, now *Frontend) []netip.AddrPort {
	list := but(now.closed(), was.closed())
	if !now.closesRemoved() {
		return list
	}
	return lists.Sorted(append(list, slices.DeleteFunc(was.endpoints(), now.has)...))
}

// but returns the elements of a sorted list that are not in another.
func but(list, others []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(list, func(a netip.AddrPort) bool { return lists.InSorted(others, a) })
}

// down returns the endpoints that keep connections although their check fails, by either route.
func (f *Frontend) down() []netip.AddrPort {
	return lists.Sorted(slices.Concat(f.Outside.Pool.Down, f.Local.Pool.Down))
}

// closed returns the endpoints whose connections are closed, and which no route has.
func (f *Frontend) closed() []netip.AddrPort {
	return slices.DeleteFunc(lists.Sorted(slices.Concat(f.Outside.Pool.Closed, f.Local.Pool.Closed)), f.has)
}

// dead returns the endpoints that may not answer any more.
func (f *Frontend) dead() []netip.AddrPort { return lists.Sorted(append(f.down(), f.closed()...)) }

// has reports whether connections may be at an endpoint.
func (f *Frontend) has(endpoint netip.AddrPort) bool {
	return f.Outside.Pool.has(endpoint) || f.Local.Pool.has(endpoint)
}

func (f *Frontend) closesRemoved() bool { return f.Outside.Pool.CloseRemoved }

// left returns the addresses of a frontend that the next one, which may be nil, has not.
func (h *Host) left(f, next *Frontend) []netip.Addr {
	return addrsBut(h.Addrs(f), h.addrsIfAny(next))
}
