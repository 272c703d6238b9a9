package loop

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A growth is a change of a service that comes in pieces.
type growth struct {
	key    source.Key
	wanted *policy.Resolved // with what the State has wherever that is equal; nil: the service is removed
	first  uint64           // the first order that is not done before it is
	queued time.Time

	pairs []pair // by place
	at    int    // the next one to look at
	left  int    // how many are not done
	cost  int    // of those, in elements

	// Of the State, and of what is wanted.
	pools   []*policy.Pool
	uses    map[*policy.Pool]int  // how often frontends in the State have each
	hairpin map[*policy.Pool]bool // may be reached from themselves, while frontends have them
	bound   map[netip.Addr]bool   // are bound, while frontends have them
}

// A pair is what a place, an address with protocol and port, has in the State, and what it is to have.
// One of the two may be nil.
type pair struct {
	old, new *policy.Frontend
	cost     int    // about how many elements of sets, or rules, change with it
	unit     *[]int // the numbers of the pairs that change in one piece; nil: it changes alone
	done     bool
}

func (p *pair) place() policy.FrontendKey { return cmp.Or(p.old, p.new).Key.WithoutKind() }

// A portKey names a port of a service. Its frontends have at most two pools.
type portKey struct {
	policy.ServicePortName
	source.Protocol
}

// newGrowth compares a service in the State with what is wanted.
func newGrowth(kernel proxier.Piecer, key source.Key, was, wanted *policy.Resolved) *growth {
	wanted, clash := reuse(was, wanted)
	g := &growth{
		key: key, wanted: wanted,
		uses: make(map[*policy.Pool]int), hairpin: make(map[*policy.Pool]bool), bound: make(map[netip.Addr]bool),
	}
	g.collect(wanted)
	g.collect(was)
	for _, f := range was.AllFrontends() {
		g.count(f, 1)
	}
	for old, f := range policy.Places(was, wanted) {
		if old != f {
			g.pairs = append(g.pairs, pair{old: old, new: f})
		}
	}
	g.left = len(g.pairs)
	g.join(kernel, clash)
	slots := slotsOf(kernel)
	for i := range g.pairs {
		p := &g.pairs[i]
		if p.cost = elementsOf(p.old, slots) + elementsOf(p.new, slots); p.unit != nil && p.old != nil && p.new != nil {
			// Each has its part in what there is of the pools, and little else changes.
			p.cost = 2 + (slots(p.old.Outside.Pool)+slots(p.new.Outside.Pool))/len(*p.unit)
		}
		g.cost += p.cost
	}
	return g
}

// collect adds what there is of a version of the service, which may be nil.
func (g *growth) collect(r *policy.Resolved) {
	if r == nil {
		return
	}
	for _, p := range r.Pools {
		if _, known := g.uses[p]; !known {
			g.uses[p] = 0
			g.pools = append(g.pools, p)
		}
	}
	for _, p := range r.HairpinPools {
		g.hairpin[p] = true
	}
	for _, a := range r.BoundAddrs {
		g.bound[a] = true
	}
}

// count updates uses: by is 1 where a frontend comes, -1 where it goes; f may be nil.
func (g *growth) count(f *policy.Frontend, by int) {
	if f != nil {
		g.uses[f.Outside.Pool] += by
		g.uses[f.FromLocal.Pool] += by
	}
}

// reuse returns wanted with the frontends and pools of was wherever they are equal, and the ports that have a pool of the
// same name which differs.
func reuse(was, wanted *policy.Resolved) (_ *policy.Resolved, clash map[portKey]bool) {
	if was == nil || wanted == nil {
		return wanted, nil
	}
	type name struct {
		portKey
		policy.Scope
	}
	named := make(map[name]*policy.Pool)
	for _, p := range wanted.Pools {
		named[name{portKey{p.ServicePort, p.Protocol}, p.Scope}] = p
	}
	same := make(map[*policy.Pool]*policy.Pool)
	clash = make(map[portKey]bool)
	for _, p := range was.Pools {
		port := portKey{p.ServicePort, p.Protocol}
		switch q := named[name{port, p.Scope}]; {
		case q == nil:
		case p == q || reflect.DeepEqual(p, q):
			same[q] = p
		default:
			clash[port] = true
		}
	}
	r := *wanted
	r.Pools, r.HairpinPools = slices.Clone(r.Pools), slices.Clone(r.HairpinPools)
	for _, list := range [][]*policy.Pool{r.Pools, r.HairpinPools} {
		for i, p := range list {
			list[i] = cmp.Or(same[p], p)
		}
	}
	r.Frontends = make([]*policy.Frontend, 0, len(wanted.Frontends))
	for old, f := range policy.Places(was, wanted) {
		if f != nil {
			r.Frontends = append(r.Frontends, reuseFrontend(old, f, same))
		}
	}
	return &r, clash
}

// reuseFrontend returns was if f is equal with the pools of same, and else f with these; was may be nil.
func reuseFrontend(was, f *policy.Frontend, same map[*policy.Pool]*policy.Pool) *policy.Frontend {
	outside, local := f.Outside, f.FromLocal
	outside.Pool, local.Pool = cmp.Or(same[outside.Pool], outside.Pool), cmp.Or(same[local.Pool], local.Pool)
	switch {
	case was != nil && outside == was.Outside && local == was.FromLocal && f.Key == was.Key && f.ServicePort == was.ServicePort &&
		f.Placed == was.Placed && slices.Equal(f.NodePortAddrs, was.NodePortAddrs) &&
		f.Restricted == was.Restricted && slices.Equal(f.SourceRanges, was.SourceRanges):
		return was
	case outside == f.Outside && local == f.FromLocal:
		return f
	}
	g := *f
	g.Outside, g.FromLocal = outside, local
	return &g
}

// join has the pairs change in one piece that must: those of a port that gets another pool in
// place of one of the same name, where the kernel has something by the name.
func (g *growth) join(kernel proxier.Piecer, clash map[portKey]bool) {
	units := make(map[portKey]*[]int)
	each := func(visit func(i int, port portKey, f *policy.Frontend)) {
		for i := range g.pairs {
			for _, f := range []*policy.Frontend{g.pairs[i].old, g.pairs[i].new} {
				if f != nil && clash[portKey{f.ServicePort, f.Key.Protocol}] {
					visit(i, portKey{f.ServicePort, f.Key.Protocol}, f)
				}
			}
		}
	}
	each(func(_ int, port portKey, f *policy.Frontend) {
		if units[port] == nil && kernel.SharesPool(f) {
			units[port] = new([]int)
		}
	})
	each(func(i int, port portKey, _ *policy.Frontend) {
		p := &g.pairs[i]
		switch to := units[port]; {
		case to == nil || to == p.unit:
		case p.unit == nil:
			p.unit = to
			*to = append(*to, i)
		default: // the place moves from one such port to another
			for _, j := range *to {
				g.pairs[j].unit = p.unit
			}
			*p.unit = append(*p.unit, *to...)
			for k, o := range units {
				if o == to {
					units[k] = p.unit
				}
			}
		}
	})
}

// sameService reports whether two services with the same frontends are equal.
func sameService(r, o *policy.Resolved) bool {
	return o != nil && slices.Equal(r.RefusedAddrs, o.RefusedAddrs) && slices.Equal(r.BoundAddrs, o.BoundAddrs) &&
		slices.Equal(r.HairpinPools, o.HairpinPools) && slices.Equal(r.Announced, o.Announced) && slices.Equal(r.Warnings, o.Warnings)
}

// next returns the numbers of the pairs of the next piece.
func (g *growth) next(most int) (piece []int) {
	cost, taken := 0, make(map[*[]int]bool)
	for len(piece) < g.left {
		if p := &g.pairs[g.at]; !p.done && !taken[p.unit] {
			unit := g.unit(g.at)
			for _, i := range unit {
				cost += g.pairs[i].cost
			}
			if cost > most && len(piece) > 0 {
				break
			}
			piece = append(piece, unit...)
			taken[p.unit] = p.unit != nil
		}
		g.at = (g.at + 1) % len(g.pairs)
	}
	return piece
}

// unit returns the numbers of all pairs that change with one.
func (g *growth) unit(i int) []int {
	if unit := g.pairs[i].unit; unit != nil {
		return *unit
	}
	return []int{i}
}

// find returns the number of the pair of a place, or where it belongs.
func (g *growth) find(place policy.FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(g.pairs, place, func(p pair, k policy.FrontendKey) int { return p.place().Compare(k) })
}

// touched returns the numbers of the pairs, not done, at places that a change of another service changes, with those that
// change with them.
func (g *growth) touched(ch policy.ServiceChange) (piece []int) {
	for was, f := range policy.Places(ch.Old, ch.New) {
		if was == f {
			continue
		}
		if i, found := g.find(cmp.Or(was, f).Key.WithoutKind()); found && !g.pairs[i].done {
			piece = append(piece, g.unit(i)...)
		}
	}
	slices.Sort(piece)
	return slices.Compact(piece)
}

// resume has the pairs come first that would come next in an earlier growth.
func (g *growth) resume(before *growth) {
	if len(g.pairs) > 0 {
		i, _ := g.find(before.pairs[before.at].place())
		g.at = i % len(g.pairs)
	}
}

// grown returns the frontends of a service with the pairs of a piece changed, which are done then.
func (g *growth) grown(was *policy.Resolved, piece []int) []*policy.Frontend {
	slices.Sort(piece)
	rest, list := was.AllFrontends(), make([]*policy.Frontend, 0, len(was.AllFrontends())+len(piece))
	for _, i := range piece {
		p := &g.pairs[i]
		p.done = true
		g.left--
		g.cost -= p.cost
		g.count(p.old, -1)
		g.count(p.new, 1)
		at, found := findPlace(rest, p.place())
		list = append(list, rest[:at]...)
		if rest = rest[at:]; found {
			rest = rest[1:]
		}
		if p.new != nil {
			list = append(list, p.new)
		}
	}
	return append(list, rest...)
}

// findPlace returns where a place is in a list of frontends, or belongs.
func findPlace(list []*policy.Frontend, place policy.FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(list, place, func(f *policy.Frontend, k policy.FrontendKey) int { return f.Key.WithoutKind().Compare(k) })
}

// hasFrontend reports whether this very frontend is one of the service.
func hasFrontend(r *policy.Resolved, f *policy.Frontend) bool {
	i, found := findPlace(r.AllFrontends(), f.Key.WithoutKind())
	return found && r.Frontends[i] == f
}

// aPiecer stands for a backend that is none.
type aPiecer struct{}

func (aPiecer) PieceSize() int                   { return 5_000 }
func (aPiecer) Slots(p *policy.Pool) int         { return len(p.Targets) }
func (aPiecer) SharesPool(*policy.Frontend) bool { return true }

// slotsOf returns Slots of a kernel that asks once for each pool.
func slotsOf(kernel proxier.Piecer) func(*policy.Pool) int {
	slots := make(map[*policy.Pool]int)
	return func(p *policy.Pool) int {
		n, known := slots[p]
		if !known {
			n = kernel.Slots(p)
			slots[p] = n
		}
		return n
	}
}

// elementsOf returns about how many elements of sets, or rules, a frontend has; f may be nil.
func elementsOf(f *policy.Frontend, slots func(*policy.Pool) int) int {
	const flags = 4
	if f == nil {
		return 0
	}
	n := flags + slots(f.Outside.Pool) + len(f.SourceRanges)
	if f.Split() {
		n += flags + slots(f.FromLocal.Pool)
	}
	return n
}

// isLarge reports whether all of a service, before and after, may be more than so many elements.
func isLarge(kernel proxier.Piecer, most int, versions ...*policy.Resolved) bool {
	n, slots := 0, slotsOf(kernel)
	for _, r := range versions {
		for _, f := range r.AllFrontends() {
			if n += elementsOf(f, slots); n > most {
				return true
			}
		}
	}
	return false
}
