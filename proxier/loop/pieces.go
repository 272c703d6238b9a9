package loop

import (
	"cmp"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A large service changes in pieces. Each Sync has all other changes that have arrived, and one piece
// of one large service, so that a change of another service, or the result of a health check, waits
// for one piece at most.
//
// The State has what the kernel holds after the next Sync: of a service that is growing, the
// frontends of all pieces so far. What is wanted is in family.growing.

// largePieces is how many pieces a change has at least: a smaller one comes in one Sync.
const largePieces = 4

// A growth is a change of a service that comes in pieces.
type growth struct {
	key    source.Key
	kernel proxier.Piecer
	wanted *policy.Resolved // nil: the service is removed
	first  uint64           // the first order that is not done before it is
	queued time.Time

	pairs []pair // all that differ, by place
	at    int    // the next one to look at
	left  int    // how many are not done
	cost  int    // of those, in elements

	uses    map[share]int              // by how many frontends in the State
	users   map[share]*policy.Frontend // one of these
	sizes   map[*policy.Pool]int       // their Slots
	hairpin map[*policy.Pool]bool      // the State's HairpinPools
	targets map[policy.Hairpin]int     // how many of these have it
	pools   map[*policy.Pool]bool      // of wanted; true: of its HairpinPools
	bound   map[netip.Addr]bool        // addresses that are bound while a frontend has them
	between policy.Resolved            // what does not depend on which pieces are done
}

// aPiecer stands for a backend that is none.
type aPiecer struct{}

func (aPiecer) PieceSize() int                   { return 5_000 }
func (aPiecer) Slots(p *policy.Pool) int         { return len(p.Targets) }
func (aPiecer) SharesPool(*policy.Frontend) bool { return true }

// A pair is what a place, an address with protocol and port, has in the State, and what it is to have.
// One of the two may be nil.
type pair struct {
	old, new *policy.Frontend
	group    *group // of pairs that change in one piece; nil: it changes alone
	done     bool
}

// A group has the numbers of pairs that change in one piece.
type group struct{ pairs []int }

func (p *pair) place() policy.FrontendKey { return cmp.Or(p.old, p.new).Key.WithoutKind() }

func (p *pair) frontends() iter.Seq[*policy.Frontend] {
	return func(yield func(*policy.Frontend) bool) {
		_ = (p.old == nil || yield(p.old)) && (p.new == nil || yield(p.new))
	}
}

// A share is something in the kernel that several frontends of a service may need: what there is of a
// pool, of a pool that rules balance to for local sources, or of a pair of routes.
type share struct{ outside, local policy.Route }

// sharesOf yields those of a frontend.
func sharesOf(f *policy.Frontend) iter.Seq[share] {
	return func(yield func(share) bool) {
		if !yield(share{outside: policy.Route{Pool: f.Outside.Pool}}) || !f.Split() {
			return
		}
		if f.Local.Pool != f.Outside.Pool && !yield(share{outside: policy.Route{Pool: f.Local.Pool}}) {
			return
		}
		_ = yield(share{local: policy.Route{Pool: f.Local.Pool}}) && yield(share{f.Outside, f.Local})
	}
}

// A portKey names a port of a service. Its frontends have at most two pools.
type portKey struct {
	policy.ServicePortName
	source.Protocol
}

func portKeyOf(f *policy.Frontend) portKey { return portKey{f.ServicePort, f.Key.Protocol} }

// newGrowth compares a service in the State with what is wanted. It returns the same service with the
// frontends and pools of wanted wherever they are equal.
func newGrowth(kernel proxier.Piecer, was, wanted *policy.Resolved) (g *growth, now *policy.Resolved) {
	g = &growth{
		key: was.Key, kernel: kernel, wanted: wanted, uses: make(map[share]int), users: make(map[share]*policy.Frontend), sizes: make(map[*policy.Pool]int),
		hairpin: make(map[*policy.Pool]bool), targets: make(map[policy.Hairpin]int), pools: make(map[*policy.Pool]bool), bound: make(map[netip.Addr]bool),
	}
	same, clash := comparePools(was, wanted)
	now = g.compare(was, same)
	g.join(clash)
	for i := range g.pairs {
		g.cost += g.costOf(&g.pairs[i])
	}
	for _, f := range now.Frontends {
		for s := range sharesOf(f) {
			g.uses[s]++
		}
	}
	for _, p := range now.HairpinPools {
		g.hairpin[p] = true
		for _, t := range p.Targets {
			g.targets[policy.NewHairpin(t.AddrPort, p.Protocol)]++
		}
	}
	for _, r := range []*policy.Resolved{was, cmp.Or(wanted, was)} {
		for _, a := range r.BoundAddrs {
			g.bound[a] = true
		}
	}
	if wanted != nil {
		for _, p := range wanted.Pools {
			g.pools[p] = false
		}
		for _, p := range wanted.HairpinPools {
			g.pools[p] = true
		}
	}
	return g, now
}

// comparePools returns for each pool of a service the equal one of wanted, else itself, and the ports
// that have a pool of the same name which differs.
func comparePools(was, wanted *policy.Resolved) (same map[*policy.Pool]*policy.Pool, clash map[portKey]bool) {
	type name struct {
		portKey
		policy.Scope
	}
	nameOf := func(p *policy.Pool) name { return name{portKey{p.ServicePort, p.Protocol}, p.Scope} }
	same, clash = make(map[*policy.Pool]*policy.Pool), make(map[portKey]bool)
	named := make(map[name]*policy.Pool)
	if wanted != nil {
		for _, p := range wanted.Pools {
			named[nameOf(p)] = p
		}
	}
	for _, p := range was.Pools {
		q := named[nameOf(p)]
		switch {
		case q == nil:
			same[p] = p
		case p == q || reflect.DeepEqual(p, q):
			same[p] = q
		default:
			same[p] = p
			clash[nameOf(p).portKey] = true
		}
	}
	return same, clash
}

// compare notes the pairs that differ, and returns was with what is equal in wanted taken from there.
func (g *growth) compare(was *policy.Resolved, same map[*policy.Pool]*policy.Pool) *policy.Resolved {
	now := *was
	now.Pools, now.HairpinPools = mapped(was.Pools, same), mapped(was.HairpinPools, same)
	now.Frontends = make([]*policy.Frontend, 0, len(was.Frontends))
	old, wanted := was.Frontends, g.wanted.AllFrontends()
	for len(old)+len(wanted) > 0 {
		var p pair
		order := comparePlaces(old, wanted)
		if order <= 0 {
			p.old, old = old[0], old[1:]
		}
		if order >= 0 {
			p.new, wanted = wanted[0], wanted[1:]
		}
		if p.old != nil && p.new != nil && sameFrontend(p.old, p.new, same) {
			now.Frontends = append(now.Frontends, p.new)
			continue
		}
		if p.old != nil {
			p.old = withPools(p.old, same)
			now.Frontends = append(now.Frontends, p.old)
		}
		g.pairs = append(g.pairs, p)
	}
	g.left = len(g.pairs)
	return &now
}

func mapped(pools []*policy.Pool, same map[*policy.Pool]*policy.Pool) []*policy.Pool {
	out := slices.Clone(pools)
	for i, p := range pools {
		out[i] = cmp.Or(same[p], p)
	}
	return out
}

// comparePlaces says which of two lists has the first place; an empty one has none.
func comparePlaces(a, b []*policy.Frontend) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return a[0].Key.WithoutKind().Compare(b[0].Key.WithoutKind())
}

// to returns a route to the equal pool of same.
func to(r policy.Route, same map[*policy.Pool]*policy.Pool) policy.Route {
	if p := same[r.Pool]; p != nil {
		r.Pool = p
	}
	return r
}

// sameFrontend reports whether two frontends are equal, if pools of f are as same says.
func sameFrontend(f, o *policy.Frontend, same map[*policy.Pool]*policy.Pool) bool {
	return to(f.Outside, same) == o.Outside && to(f.Local, same) == o.Local && f.Key == o.Key && f.ServicePort == o.ServicePort &&
		f.Placed == o.Placed && slices.Equal(f.NodePortAddrs, o.NodePortAddrs) &&
		f.Restricted == o.Restricted && slices.Equal(f.SourceRanges, o.SourceRanges)
}

// withPools returns f with the equal pools of same.
func withPools(f *policy.Frontend, same map[*policy.Pool]*policy.Pool) *policy.Frontend {
	outside, local := to(f.Outside, same), to(f.Local, same)
	if outside == f.Outside && local == f.Local {
		return f
	}
	g := *f
	g.Outside, g.Local = outside, local
	return &g
}

// join groups the pairs that must change in one piece: those of a port that gets another pool in
// place of one of the same name, where the kernel has something by the name.
func (g *growth) join(clash map[portKey]bool) {
	groups := make(map[portKey]*group)
	for i := range g.pairs {
		for f := range g.pairs[i].frontends() {
			if k := portKeyOf(f); clash[k] && groups[k] == nil && g.kernel.SharesPool(f) {
				groups[k] = new(group)
			}
		}
	}
	if len(groups) == 0 {
		return
	}
	for i := range g.pairs {
		p := &g.pairs[i]
		for f := range p.frontends() {
			switch to := groups[portKeyOf(f)]; {
			case to == nil || to == p.group:
			case p.group == nil:
				p.group = to
				to.pairs = append(to.pairs, i)
			default: // the place moves from one such port to another
				for _, j := range to.pairs {
					g.pairs[j].group = p.group
				}
				p.group.pairs = append(p.group.pairs, to.pairs...)
				for k, o := range groups {
					if o == to {
						groups[k] = p.group
					}
				}
			}
		}
	}
}

// elementsOf returns about how many elements of sets, or rules, a frontend has; f may be nil.
func (g *growth) elementsOf(f *policy.Frontend) int {
	const flags = 4
	if f == nil {
		return 0
	}
	n := flags + g.size(f.Outside.Pool) + len(f.SourceRanges)
	if f.Split() {
		n += flags + g.size(f.Local.Pool)
	}
	return n
}

// costOf returns about how many elements a pair changes. Of a group each has its part in what there is
// of the pools, and little else changes.
func (g *growth) costOf(p *pair) int {
	if p.group != nil && p.old != nil && p.new != nil {
		return 2 + (g.size(p.old.Outside.Pool)+g.size(p.new.Outside.Pool))/len(p.group.pairs)
	}
	return g.elementsOf(p.old) + g.elementsOf(p.new)
}

// size returns the Slots of a pool.
func (g *growth) size(p *policy.Pool) int {
	n, known := g.sizes[p]
	if !known {
		n = g.kernel.Slots(p)
		g.sizes[p] = n
	}
	return n
}

// isLarge reports whether all of a service, before and after, may be more than so many elements.
func isLarge(kernel proxier.Piecer, most int, versions ...*policy.Resolved) bool {
	g := growth{kernel: kernel, sizes: make(map[*policy.Pool]int)}
	n := 0
	for _, r := range versions {
		for _, f := range r.AllFrontends() {
			if n += g.elementsOf(f); n > most {
				return true
			}
		}
	}
	return false
}

// next returns the numbers of the pairs of the next piece.
func (g *growth) next(most int) (piece []int) {
	cost, taken := 0, make(map[*group]bool)
	for len(piece) < g.left {
		p := &g.pairs[g.at]
		if !p.done && !taken[p.group] {
			unit := g.unit(g.at)
			for _, i := range unit {
				cost += g.costOf(&g.pairs[i])
			}
			if cost > most && len(piece) > 0 {
				break
			}
			piece = append(piece, unit...)
			taken[p.group] = p.group != nil
		}
		g.at = (g.at + 1) % len(g.pairs)
	}
	return piece
}

// unit returns the numbers of all pairs that change with one.
func (g *growth) unit(i int) []int {
	if group := g.pairs[i].group; group != nil {
		return group.pairs
	}
	return []int{i}
}

// find returns the number of the pair of a place that is not done.
func (g *growth) find(place policy.FrontendKey) (int, bool) {
	i, found := slices.BinarySearchFunc(g.pairs, place, func(p pair, k policy.FrontendKey) int { return p.place().Compare(k) })
	return i, found && !g.pairs[i].done
}

// touched returns the numbers of the pairs, not done, at whose places a change of another service has
// frontends, with those that change with them.
func (g *growth) touched(ch *policy.ServiceChange) (piece []int) {
	for _, r := range []*policy.Resolved{ch.Old, ch.New} {
		for _, f := range r.AllFrontends() {
			if i, found := g.find(f.Key.WithoutKind()); found {
				piece = append(piece, g.unit(i)...)
			}
		}
	}
	slices.Sort(piece)
	return slices.Compact(piece)
}

// resume has the pairs come first that would come next in an earlier growth.
func (g *growth) resume(before *growth) {
	if len(g.pairs) == 0 {
		return
	}
	next := before.pairs[before.at].place()
	i, _ := slices.BinarySearchFunc(g.pairs, next, func(p pair, k policy.FrontendKey) int { return p.place().Compare(k) })
	g.at = i % len(g.pairs)
}
