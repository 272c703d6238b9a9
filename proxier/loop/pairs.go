package loop

import (
	"cmp"
	"iter"
	"reflect"
	"slices"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// pairs are the places at which a service in the State differs from what is wanted, and which of them are done.
type pairs struct {
	sizes
	list []pair // by place
	at   int    // the next one to look at
	left int    // how many are not done
	cost int    // of those, in elements
}

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

// A portKey names a port of a service. Its frontends have at most two pools.
type portKey struct {
	policy.ServicePortName
	source.Protocol
}

func portKeyOf(f *policy.Frontend) portKey { return portKey{f.ServicePort, f.Key.Protocol} }

// newPairs compares a service in the State with what is wanted. It returns the same service with the
// frontends and pools of wanted wherever they are equal.
func newPairs(kernel proxier.Piecer, was, wanted *policy.Resolved) (p pairs, now *policy.Resolved) {
	p.sizes = sizes{kernel, make(map[*policy.Pool]int)}
	same, clash := comparePools(was, wanted)
	now = p.compare(was, wanted, same)
	p.join(clash)
	for i := range p.list {
		p.cost += p.costOf(&p.list[i])
	}
	return p, now
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
func (d *pairs) compare(was, wanted *policy.Resolved, same map[*policy.Pool]*policy.Pool) *policy.Resolved {
	now := *was
	now.Pools, now.HairpinPools = mapped(was.Pools, same), mapped(was.HairpinPools, same)
	now.Frontends = make([]*policy.Frontend, 0, len(was.Frontends))
	old, next := was.Frontends, wanted.AllFrontends()
	for len(old)+len(next) > 0 {
		var p pair
		order := comparePlaces(old, next)
		if order <= 0 {
			p.old, old = old[0], old[1:]
		}
		if order >= 0 {
			p.new, next = next[0], next[1:]
		}
		if p.old != nil && p.new != nil && sameFrontend(p.old, p.new, same) {
			now.Frontends = append(now.Frontends, p.new)
			continue
		}
		if p.old != nil {
			p.old = withPools(p.old, same)
			now.Frontends = append(now.Frontends, p.old)
		}
		d.list = append(d.list, p)
	}
	d.left = len(d.list)
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
	r.Pool = cmp.Or(same[r.Pool], r.Pool)
	return r
}

// sameFrontend reports whether two frontends are equal, if pools of f are as same says.
func sameFrontend(f, o *policy.Frontend, same map[*policy.Pool]*policy.Pool) bool {
	return to(f.Outside, same) == o.Outside && to(f.FromLocal, same) == o.FromLocal && f.Key == o.Key && f.ServicePort == o.ServicePort &&
		f.Placed == o.Placed && slices.Equal(f.NodePortAddrs, o.NodePortAddrs) &&
		f.Restricted == o.Restricted && slices.Equal(f.SourceRanges, o.SourceRanges)
}

// withPools returns f with the equal pools of same.
func withPools(f *policy.Frontend, same map[*policy.Pool]*policy.Pool) *policy.Frontend {
	outside, local := to(f.Outside, same), to(f.FromLocal, same)
	if outside == f.Outside && local == f.FromLocal {
		return f
	}
	g := *f
	g.Outside, g.FromLocal = outside, local
	return &g
}

// join groups the pairs that must change in one piece: those of a port that gets another pool in
// place of one of the same name, where the kernel has something by the name.
func (d *pairs) join(clash map[portKey]bool) {
	groups := make(map[portKey]*group)
	for i := range d.list {
		for f := range d.list[i].frontends() {
			if k := portKeyOf(f); clash[k] && groups[k] == nil && d.kernel.SharesPool(f) {
				groups[k] = new(group)
			}
		}
	}
	if len(groups) == 0 {
		return
	}
	for i := range d.list {
		p := &d.list[i]
		for f := range p.frontends() {
			switch to := groups[portKeyOf(f)]; {
			case to == nil || to == p.group:
			case p.group == nil:
				p.group = to
				to.pairs = append(to.pairs, i)
			default: // the place moves from one such port to another
				for _, j := range to.pairs {
					d.list[j].group = p.group
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

// costOf returns about how many elements a pair changes. Of a group each has its part in what there is
// of the pools, and little else changes.
func (d *pairs) costOf(p *pair) int {
	if p.group != nil && p.old != nil && p.new != nil {
		return 2 + (d.pool(p.old.Outside.Pool)+d.pool(p.new.Outside.Pool))/len(p.group.pairs)
	}
	return d.elementsOf(p.old) + d.elementsOf(p.new)
}

// next returns the numbers of the pairs of the next piece.
func (d *pairs) next(most int) (piece []int) {
	cost, taken := 0, make(map[*group]bool)
	for len(piece) < d.left {
		p := &d.list[d.at]
		if !p.done && !taken[p.group] {
			unit := d.unit(d.at)
			for _, i := range unit {
				cost += d.costOf(&d.list[i])
			}
			if cost > most && len(piece) > 0 {
				break
			}
			piece = append(piece, unit...)
			taken[p.group] = p.group != nil
		}
		d.at = (d.at + 1) % len(d.list)
	}
	return piece
}

// unit returns the numbers of all pairs that change with one.
func (d *pairs) unit(i int) []int {
	if group := d.list[i].group; group != nil {
		return group.pairs
	}
	return []int{i}
}

// find returns the number of the pair of a place, or where it belongs.
func (d *pairs) find(place policy.FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(d.list, place, func(p pair, k policy.FrontendKey) int { return p.place().Compare(k) })
}

// touched returns the numbers of the pairs, not done, at whose places a change of another service has
// frontends, with those that change with them.
func (d *pairs) touched(ch *policy.ServiceChange) (piece []int) {
	for _, r := range []*policy.Resolved{ch.Old, ch.New} {
		for _, f := range r.AllFrontends() {
			if i, found := d.find(f.Key.WithoutKind()); found && !d.list[i].done {
				piece = append(piece, d.unit(i)...)
			}
		}
	}
	slices.Sort(piece)
	return slices.Compact(piece)
}

// resume has the pairs come first that would come next in earlier pairs.
func (d *pairs) resume(before *pairs) {
	if len(d.list) == 0 {
		return
	}
	i, _ := d.find(before.list[before.at].place())
	d.at = i % len(d.list)
}

// markDone marks the pairs of a piece as done. It returns them, and what they change.
func (d *pairs) markDone(key source.Key, piece []int) (taken []*pair, part policy.ServiceChange) {
	slices.Sort(piece)
	part.Old, part.New, part.Part = &policy.Resolved{Key: key}, &policy.Resolved{Key: key}, true
	taken = make([]*pair, len(piece))
	for n, i := range piece {
		p := &d.list[i]
		taken[n], p.done = p, true
		d.left--
		d.cost -= d.costOf(p)
		if p.old != nil {
			part.Old.Frontends = append(part.Old.Frontends, p.old)
		}
		if p.new != nil {
			part.New.Frontends = append(part.New.Frontends, p.new)
		}
	}
	return taken, part
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

// sizes say how many elements of sets, or rules, the kernel has for frontends.
type sizes struct {
	kernel proxier.Piecer
	slots  map[*policy.Pool]int
}

// aPiecer stands for a backend that is none.
type aPiecer struct{}

func (aPiecer) PieceSize() int                   { return 5_000 }
func (aPiecer) Slots(p *policy.Pool) int         { return len(p.Targets) }
func (aPiecer) SharesPool(*policy.Frontend) bool { return true }

// elementsOf returns about how many elements of sets, or rules, a frontend has; f may be nil.
func (s *sizes) elementsOf(f *policy.Frontend) int {
	const flags = 4
	if f == nil {
		return 0
	}
	n := flags + s.pool(f.Outside.Pool) + len(f.SourceRanges)
	if f.Split() {
		n += flags + s.pool(f.FromLocal.Pool)
	}
	return n
}

// pool returns the Slots of a pool.
func (s *sizes) pool(p *policy.Pool) int {
	n, known := s.slots[p]
	if !known {
		n = s.kernel.Slots(p)
		s.slots[p] = n
	}
	return n
}

// isLarge reports whether all of a service, before and after, may be more than so many elements.
func isLarge(kernel proxier.Piecer, most int, versions ...*policy.Resolved) bool {
	s := sizes{kernel, make(map[*policy.Pool]int)}
	n := 0
	for _, r := range versions {
		for _, f := range r.AllFrontends() {
			if n += s.elementsOf(f); n > most {
				return true
			}
		}
	}
	return false
}
