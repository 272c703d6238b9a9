package flows

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// changeOf returns what became of a frontend; was is nil if it is new, now is nil if it is gone.
func changeOf(was, now *policy.Frontend) (c frontendChange) {
	if was == nil {
		c.appeared, c.whole, c.former, c.closed = true, true, now.Down(), now.Closed()
		return c
	}
	if now == nil {
		c.former, c.dead = lists.Sorted(was.Endpoints()), was.Dead()
		if was.ClosesRemoved() {
			c.closed = c.former
		}
		return c
	}
	c.appeared, c.closed = opens(was, now), now.NewlyClosed(was)
	c.whole = c.appeared || now.Bars(was)
	c.former = lists.Sorted(slices.Concat(
		lostTargets(was.Outside.Pool, now.Outside.Pool), lostTargets(was.FromLocal.Pool, now.FromLocal.Pool),
		but(now.Down(), was.Down()), slices.DeleteFunc(was.Endpoints(), now.Has), c.closed,
	))
	c.dead = slices.DeleteFunc(was.Dead(), now.Has)
	return c
}

// lostTargets returns the targets of a pool that another one does not have.
func lostTargets(was, now *policy.Pool) []netip.AddrPort {
	if was == now {
		return nil
	}
	return slices.DeleteFunc(was.TargetAddrs(), now.Targeted)
}

// opens reports whether a frontend balances packets that it refused before.
func opens(was, now *policy.Frontend) bool {
	opens := func(was, now policy.Route) bool { return was.Action != policy.Balance && now.Action == policy.Balance }
	return opens(was.Outside, now.Outside) || opens(was.FromLocal, now.FromLocal)
}

// but returns the elements of a sorted list that are not in another.
func but(list, others []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(list, func(a netip.AddrPort) bool { return lists.InSorted(others, a) })
}
