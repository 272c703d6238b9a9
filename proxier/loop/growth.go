package loop

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A growth is a change of a service that comes in pieces.
type growth struct {
	key    source.Key
	wanted *policy.Resolved // nil: the service is removed
	first  uint64           // the first order that is not done before it is
	queued time.Time

	pairs   pairs // all that differ
	sharing sharing
	bound   map[netip.Addr]bool // addresses that are bound while a frontend has them
	between policy.Resolved     // what does not depend on which pieces are done
}

// newGrowth compares a service in the State with what is wanted. It returns the same service with the
// frontends and pools of wanted wherever they are equal.
func newGrowth(kernel proxier.Piecer, was, wanted *policy.Resolved) (g *growth, now *policy.Resolved) {
	pairs, now := newPairs(kernel, was, wanted)
	g = &growth{key: was.Key, wanted: wanted, pairs: pairs, sharing: newSharing(now, wanted), bound: make(map[netip.Addr]bool)}
	for _, r := range []*policy.Resolved{was, cmp.Or(wanted, was)} {
		for _, a := range r.BoundAddrs {
			g.bound[a] = true
		}
	}
	return g, now
}

// sameService reports whether two services with the same frontends are equal.
func sameService(r, o *policy.Resolved) bool {
	return o != nil && slices.Equal(r.RefusedAddrs, o.RefusedAddrs) && slices.Equal(r.BoundAddrs, o.BoundAddrs) &&
		slices.Equal(r.HairpinPools, o.HairpinPools) && slices.Equal(r.Announced, o.Announced) && slices.Equal(r.Warnings, o.Warnings)
}

// now returns the service with the pairs of a piece changed.
func (g *growth) now(was *policy.Resolved, pairs []*pair) *policy.Resolved {
	r := g.between
	r.Frontends = make([]*policy.Frontend, 0, len(was.Frontends)+len(pairs))
	rest := was.Frontends
	for _, p := range pairs {
		i, found := findPlace(rest, p.place())
		r.Frontends = append(r.Frontends, rest[:i]...)
		if rest = rest[i:]; found {
			rest = rest[1:]
		}
		if p.new != nil {
			r.Frontends = append(r.Frontends, p.new)
		}
	}
	r.Frontends = append(r.Frontends, rest...)
	if g.wanted != nil {
		r.Pools = lists.Keep(g.wanted.Pools, g.sharing.inUse)
		r.HairpinPools = lists.Keep(g.wanted.HairpinPools, func(p *policy.Pool) bool { return g.sharing.hairpin[p] })
	}
	for _, p := range was.Pools {
		if _, wanted := g.sharing.wanted[p]; !wanted && g.sharing.inUse(p) {
			r.Pools = append(r.Pools, p)
		}
	}
	for _, p := range was.HairpinPools {
		if !g.sharing.wanted[p] && g.sharing.hairpin[p] {
			r.HairpinPools = append(r.HairpinPools, p)
		}
	}
	for _, f := range r.Frontends { // sorted by address
		n := len(r.BoundAddrs)
		if a := f.Key.Addr; (n == 0 || r.BoundAddrs[n-1] != a) && f.Key.Kind != policy.NodePort && g.bound[a] {
			r.BoundAddrs = append(r.BoundAddrs, a)
		}
	}
	return &r
}
