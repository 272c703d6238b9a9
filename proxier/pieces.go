package proxier

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/maglev"
	"svcproxy.dev/svcproxy/source"
)

// A large service changes in pieces. Each Sync has all other changes that have arrived, and one piece
// of one large service, so that a change of another service, or the result of a health check, waits
// for one piece at most.
//
// The State has what the kernel holds after the next Sync: of a service that is growing, the
// frontends of all pieces so far. What is wanted is in family.growing.

// defaultPiece is about how many elements of nftables sets one piece changes. On two cores that others kept
// busy a piece took 80 ms with nftables at 200,000 frontends, and 350 ms with iptables-nft at 20,000, on average
// (BenchmarkPieces).
const defaultPiece = 5_000

// largePieces is how many pieces a change has at least: a smaller one comes in one Sync.
const largePieces = 4

// A growth is a change of a service that comes in pieces.
type growth struct {
	key    source.Key
	wanted *Resolved // nil: the service is removed
	first  uint64    // the first order that is not done before it is
	queued time.Time

	pairs []pair // all that differ, by place
	at    int    // the next one to look at
	left  int    // how many are not done
	cost  int    // of those, in elements

	uses    map[share]int       // by how many frontends in the State
	users   map[share]*Frontend // one of these
	sizes   map[*Pool]int       // see elementsOf
	hairpin map[*Pool]bool      // the State's HairpinPools
	targets map[Hairpin]int     // how many of these have it
	pools   map[*Pool]bool      // of wanted; true: of its HairpinPools
	bound   map[netip.Addr]bool // addresses that are bound while a frontend has them
	between Resolved            // what does not depend on which pieces are done
}

// A pair is what a place, an address with protocol and port, has in the State, and what it is to have.
// One of the two may be nil.
type pair struct {
	old, new *Frontend
	group    *group // of pairs that change in one piece; nil: it changes alone
	done     bool
}

// A group has the numbers of pairs that change in one piece.
type group struct{ pairs []int }

func (p *pair) place() FrontendKey { return cmp.Or(p.old, p.new).Key.WithoutKind() }

func (p *pair) frontends() iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		_ = (p.old == nil || yield(p.old)) && (p.new == nil || yield(p.new))
	}
}

// A share is something in the kernel that several frontends of a service may need: what there is of a
// pool, of a pool that rules balance to for local sources, or of a pair of routes.
type share struct{ outside, local Route }

// shares yields those of a frontend.
func (f *Frontend) shares() iter.Seq[share] {
	return func(yield func(share) bool) {
		if !yield(share{outside: Route{Pool: f.Outside.Pool}}) || !f.Split() {
			return
		}
		if f.Local.Pool != f.Outside.Pool && !yield(share{outside: Route{Pool: f.Local.Pool}}) {
			return
		}
		_ = yield(share{local: Route{Pool: f.Local.Pool}}) && yield(share{f.Outside, f.Local})
	}
}

// A portKey names a port of a service. Its frontends have at most two pools.
type portKey struct {
	ServicePortName
	source.Protocol
}

func portKeyOf(f *Frontend) portKey { return portKey{f.ServicePort, f.Key.Protocol} }

// newGrowth compares a service in the State with what is wanted. It returns the same service with the
// frontends and pools of wanted wherever they are equal. together says of which frontends the kernel
// has something by their pool.
func newGrowth(was, wanted *Resolved, together func(*Frontend) bool) (g *growth, now *Resolved) {
	g = &growth{
		key: was.Key, wanted: wanted, uses: make(map[share]int), users: make(map[share]*Frontend), sizes: make(map[*Pool]int),
		hairpin: make(map[*Pool]bool), targets: make(map[Hairpin]int), pools: make(map[*Pool]bool), bound: make(map[netip.Addr]bool),
	}
	same, clash := comparePools(was, wanted)
	now = g.compare(was, same)
	g.join(clash, together)
	for i := range g.pairs {
		g.cost += g.costOf(&g.pairs[i])
	}
	for _, f := range now.Frontends {
		for s := range f.shares() {
			g.uses[s]++
		}
	}
	for _, p := range now.HairpinPools {
		g.hairpin[p] = true
		for _, t := range p.Targets {
			g.targets[NewHairpin(t.AddrPort, p.Protocol)]++
		}
	}
	for _, r := range []*Resolved{was, cmp.Or(wanted, was)} {
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
func comparePools(was, wanted *Resolved) (same map[*Pool]*Pool, clash map[portKey]bool) {
	type name struct {
		portKey
		Scope
	}
	nameOf := func(p *Pool) name { return name{portKey{p.ServicePort, p.Protocol}, p.Scope} }
	same, clash = make(map[*Pool]*Pool), make(map[portKey]bool)
	named := make(map[name]*Pool)
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
func (g *growth) compare(was *Resolved, same map[*Pool]*Pool) *Resolved {
	now := *was
	now.Pools, now.HairpinPools = mapped(was.Pools, same), mapped(was.HairpinPools, same)
	now.Frontends = make([]*Frontend, 0, len(was.Frontends))
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
		if p.old != nil && p.new != nil && p.old.equal(p.new, same) {
			now.Frontends = append(now.Frontends, p.new)
			continue
		}
		if p.old != nil {
			p.old = p.old.withPools(same)
			now.Frontends = append(now.Frontends, p.old)
		}
		g.pairs = append(g.pairs, p)
	}
	g.left = len(g.pairs)
	return &now
}

func mapped(pools []*Pool, same map[*Pool]*Pool) []*Pool {
	out := slices.Clone(pools)
	for i, p := range pools {
		out[i] = cmp.Or(same[p], p)
	}
	return out
}

// comparePlaces says which of two lists has the first place; an empty one has none.
func comparePlaces(a, b []*Frontend) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return a[0].Key.WithoutKind().Compare(b[0].Key.WithoutKind())
}

// to returns a route to the equal pool of same.
func (r Route) to(same map[*Pool]*Pool) Route {
	if p := same[r.Pool]; p != nil {
		r.Pool = p
	}
	return r
}

// equal reports whether two frontends are equal, if pools of f are as same says.
func (f *Frontend) equal(o *Frontend, same map[*Pool]*Pool) bool {
	return f.Outside.to(same) == o.Outside && f.Local.to(same) == o.Local && f.Key == o.Key && f.ServicePort == o.ServicePort &&
		f.Placed == o.Placed && slices.Equal(f.NodePortAddrs, o.NodePortAddrs) &&
		f.Restricted == o.Restricted && slices.Equal(f.SourceRanges, o.SourceRanges)
}

// withPools returns f with the equal pools of same.
func (f *Frontend) withPools(same map[*Pool]*Pool) *Frontend {
	outside, local := f.Outside.to(same), f.Local.to(same)
	if outside == f.Outside && local == f.Local {
		return f
	}
	g := *f
	g.Outside, g.Local = outside, local
	return &g
}

// join groups the pairs that must change in one piece: those of a port that gets another pool in
// place of one of the same name, where the kernel has something by the name.
func (g *growth) join(clash map[portKey]bool, together func(*Frontend) bool) {
	groups := make(map[portKey]*group)
	for i := range g.pairs {
		for f := range g.pairs[i].frontends() {
			if k := portKeyOf(f); clash[k] && groups[k] == nil && together(f) {
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

// elementsOf returns about how many elements of nftables sets a frontend has; f may be nil. The other
// modes have as much to do, within a factor of two.
func (g *growth) elementsOf(f *Frontend) int {
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

// size returns about how many slots a pool has.
func (g *growth) size(p *Pool) int {
	n, known := g.sizes[p]
	if !known {
		n = p.slots()
		g.sizes[p] = n
	}
	return n
}

// slots returns about how many slots a pool has with nftables.
func (p *Pool) slots() int {
	const most, few = 16, 128 // as proxier/nftables has them
	if p.Hash.On != source.NotHashed {
		return maglev.Size(p.Hash.Endpoints)
	}
	sum, divisor := 0, 0
	for _, t := range p.Targets {
		sum += int(t.Weight)
		for a := int(t.Weight); a != 0; {
			a, divisor = divisor%a, a
		}
	}
	return min(sum/max(divisor, 1), max(few, most*len(p.Targets)))
}

// isLarge reports whether all of a service, before and after, may be more than so many elements.
func isLarge(most int, versions ...*Resolved) bool {
	g := growth{sizes: make(map[*Pool]int)}
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
func (g *growth) find(place FrontendKey) (int, bool) {
	i, found := slices.BinarySearchFunc(g.pairs, place, func(p pair, k FrontendKey) int { return p.place().Compare(k) })
	return i, found && !g.pairs[i].done
}

// touched returns the numbers of the pairs, not done, at whose places a change of another service has
// frontends, with those that change with them.
func (g *growth) touched(ch *ServiceChange) (piece []int) {
	for _, r := range []*Resolved{ch.Old, ch.New} {
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
	i, _ := slices.BinarySearchFunc(g.pairs, next, func(p pair, k FrontendKey) int { return p.place().Compare(k) })
	g.at = i % len(g.pairs)
}

// put has a service come to be as wanted in the next Sync or, if that is a large change, in several.
// It reports whether that changes anything. The caller holds f.mu.
func (f *family) put(key source.Key, wanted *Resolved, queued time.Time) (changed bool) {
	was, before := f.state.Services[key], f.growing[key]
	most := largePieces * f.cfg.piece()
	if f.full || f.news.err != nil || before == nil && !isLarge(most, was, wanted) {
		delete(f.growing, key)
		if changed = f.changes.put(f.state, key, wanted) || before != nil; changed {
			f.queue(queued)
		}
		return changed
	}
	delete(f.growing, key)
	if was == nil {
		was = &Resolved{Key: key}
	}
	g, now := newGrowth(was, wanted, f.together)
	g.between = f.between(was, wanted)
	if f.state.Services[key] != nil {
		f.state.Services[key] = now
	}
	if g.left == 0 && (f.state.Services[key] == nil && wanted == nil || now.equal(wanted)) {
		return before != nil
	}
	g.first, g.queued = f.news.told+1, queued
	if before != nil {
		g.first, g.queued = before.first, before.queued
		g.resume(before)
	}
	if g.cost <= most {
		f.queue(g.queued)
		f.apply(g, g.next(most))
	} else {
		f.growing[key] = g
		if ch, again := f.changes.services[key]; again { // another service may have what the last Sync did not yet take from it
			f.apply(g, g.touched(&ch))
		}
	}
	return true
}

// equal reports whether two services with the same frontends are equal.
func (r *Resolved) equal(o *Resolved) bool {
	return o != nil && slices.Equal(r.RefusedVIPs, o.RefusedVIPs) && slices.Equal(r.BoundAddrs, o.BoundAddrs) &&
		slices.Equal(r.HairpinPools, o.HairpinPools) && slices.Equal(r.Announced, o.Announced) && slices.Equal(r.Warnings, o.Warnings)
}

// queue notes when a change arrived that the next Sync has.
func (f *family) queue(at time.Time) {
	if f.queued.IsZero() {
		f.queued = at
	}
}

// piece returns about how many elements a piece has.
func (c *Config) piece() int { return cmp.Or(c.Piece, defaultPiece) }

// together reports whether the backend has something by the pool of a frontend, rather than by the frontend.
func (f *family) together(fe *Frontend) bool {
	b, ok := f.backend.(pooler)
	return !ok || b.SharesPool(fe)
}

// between returns what does not depend on the frontends of a service while it grows: a VIP is refused,
// and an address announced, from the last piece on, except where the kernel refuses it already, or it is
// announced; one that is not to be any more is not from the first piece on.
func (f *family) between(was, wanted *Resolved) Resolved {
	r := Resolved{Key: was.Key}
	if wanted == nil {
		return r
	}
	r.Warnings = wanted.Warnings
	for _, a := range wanted.RefusedVIPs {
		if f.state.RefusedVIPs[a] > 0 || f.changes.vips[a] < 0 {
			r.RefusedVIPs = append(r.RefusedVIPs, a)
		}
	}
	had := make(map[Announcement]bool, len(was.Announced))
	for _, n := range was.Announced {
		had[n] = true
	}
	r.Announced = keep(wanted.Announced, func(n Announcement) bool { return had[n] })
	return r
}

// grow puts into the State what the next Sync has of growing services: a full one all.
func (f *family) grow(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(f.growing) == 0:
	case full:
		f.takeAll()
	default:
		f.takePiece()
	}
}

// takePiece puts into the State what the next Sync has of growing services: one piece, and what
// moves between a service that changes and a growing one. The caller holds f.mu.
func (f *family) takePiece() {
	todo := slices.Collect(maps.Values(f.changes.services))
	g := f.nextGrowing()
	f.lastGrown = g.key
	todo = append(todo, f.apply(g, g.next(f.cfg.piece())))
	for ; len(todo) > 0; todo = todo[1:] {
		for key, g := range f.growing {
			if key == todo[0].key() {
				continue
			}
			if piece := g.touched(&todo[0]); len(piece) > 0 {
				todo = append(todo, f.apply(g, piece))
			}
		}
	}
}

// nextGrowing returns the growing service after that which had the last piece, in the order of names.
func (f *family) nextGrowing() *growth {
	keys := slices.SortedFunc(maps.Keys(f.growing), source.Key.Compare)
	for _, key := range keys {
		if key.Compare(f.lastGrown) > 0 {
			return f.growing[key]
		}
	}
	return f.growing[keys[0]]
}

// takeAll puts all into the State that is left of growing services. The caller holds f.mu.
func (f *family) takeAll() {
	for _, g := range f.growing {
		f.apply(g, g.next(g.cost))
	}
}

// apply puts the pairs of a piece into the State, and notes the change.
func (f *family) apply(g *growth, piece []int) ServiceChange {
	f.revision.Add(1)
	was, all := f.state.Services[g.key], f.state.Services[g.key]
	if was == nil {
		was = &Resolved{Key: g.key}
	}
	slices.Sort(piece)
	part := ServiceChange{Old: &Resolved{Key: g.key}, New: &Resolved{Key: g.key}, Part: true}
	pairs := make([]*pair, len(piece))
	for n, i := range piece {
		p := &g.pairs[i]
		pairs[n], p.done = p, true
		g.left--
		g.cost -= g.costOf(p)
		if p.old != nil {
			part.Old.Frontends = append(part.Old.Frontends, p.old)
		}
		if p.new != nil {
			part.New.Frontends = append(part.New.Frontends, p.new)
		}
	}
	g.count(&part)
	f.hairpins(g, &part)
	now := g.wanted
	if g.left == 0 {
		delete(f.growing, g.key)
		f.queue(g.queued)
	} else {
		now = g.now(was, pairs)
	}
	g.addUsers(&part, was)
	part.Old.Pools, part.New.Pools = poolsOf(part.Old.Frontends), poolsOf(part.New.Frontends)
	f.changes.recount(f.state, was, now)
	if f.state.Services[g.key] = now; now == nil {
		delete(f.state.Services, g.key)
	}
	f.changes.notePart(g.key, all, now, part)
	return part
}

// count updates uses, users are found later.
func (g *growth) count(part *ServiceChange) {
	for _, f := range part.Old.Frontends {
		for s := range f.shares() {
			if g.uses[s]--; g.uses[s] == 0 {
				delete(g.uses, s)
			}
		}
	}
	for _, f := range part.New.Frontends {
		for s := range f.shares() {
			g.uses[s]++
		}
	}
}

// now returns the service with the pairs of a piece changed.
func (g *growth) now(was *Resolved, pairs []*pair) *Resolved {
	r := g.between
	r.Frontends = make([]*Frontend, 0, len(was.Frontends)+len(pairs))
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
		r.Pools = keep(g.wanted.Pools, g.inUse)
		r.HairpinPools = keep(g.wanted.HairpinPools, func(p *Pool) bool { return g.hairpin[p] })
	}
	for _, p := range was.Pools {
		if _, wanted := g.pools[p]; !wanted && g.inUse(p) {
			r.Pools = append(r.Pools, p)
		}
	}
	for _, p := range was.HairpinPools {
		if !g.pools[p] && g.hairpin[p] {
			r.HairpinPools = append(r.HairpinPools, p)
		}
	}
	for _, f := range r.Frontends { // sorted by address
		n := len(r.BoundAddrs)
		if a := f.Key.Addr; (n == 0 || r.BoundAddrs[n-1] != a) && f.Key.Kind != NodePort && g.bound[a] {
			r.BoundAddrs = append(r.BoundAddrs, a)
		}
	}
	return &r
}

// inUse reports whether a frontend in the State has a pool.
func (g *growth) inUse(p *Pool) bool { return g.uses[share{outside: Route{Pool: p}}] > 0 }

// hairpins counts the targets of pools that may reach themselves from a piece on, or no more.
func (f *family) hairpins(g *growth, part *ServiceChange) {
	set := func(p *Pool, is bool) {
		if g.hairpin[p] == is {
			return
		}
		by := 1
		if g.hairpin[p] = is; !is {
			delete(g.hairpin, p)
			by = -1
		}
		for _, t := range p.Targets {
			h := NewHairpin(t.AddrPort, p.Protocol)
			had := g.targets[h]
			if g.targets[h] += by; g.targets[h] == 0 {
				delete(g.targets, h)
			}
			if had == 0 || had+by == 0 {
				countAll(f.state.Hairpins, f.changes.hairpins, slices.Values([]Hairpin{h}), by)
			}
		}
	}
	for _, p := range poolsOf(part.New.Frontends) {
		if g.pools[p] {
			set(p, true)
		}
	}
	for _, p := range poolsOf(part.Old.Frontends) {
		if !g.inUse(p) {
			set(p, false)
		}
	}
	if g.left > 0 {
		return
	}
	for p, is := range g.pools {
		set(p, is)
	}
	for p := range g.hairpin {
		set(p, g.pools[p])
	}
}

// findPlace returns where a place is in a list of frontends, or belongs.
func findPlace(list []*Frontend, place FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(list, place, func(f *Frontend, k FrontendKey) int { return f.Key.WithoutKind().Compare(k) })
}

// hasFrontend reports whether this very frontend is one of the service.
func (r *Resolved) hasFrontend(f *Frontend) bool {
	if r == nil {
		return false
	}
	i, found := findPlace(r.Frontends, f.Key.WithoutKind())
	return found && r.Frontends[i] == f
}

// addUsers adds to both sides of a part one frontend that stays for each share that others need, too.
func (g *growth) addUsers(part *ServiceChange, was *Resolved) {
	places, own, missing := make(map[FrontendKey]bool), make(map[share]int), make(map[share]bool)
	for _, f := range part.New.Frontends {
		places[f.Key.WithoutKind()] = true
		for s := range f.shares() {
			own[s]++
		}
	}
	for _, f := range part.Old.Frontends {
		places[f.Key.WithoutKind()] = true
	}
	for _, r := range []*Resolved{part.Old, part.New} {
		for _, f := range r.Frontends {
			for s := range f.shares() {
				if g.uses[s] > own[s] {
					missing[s] = true
				}
			}
		}
	}
	var users []*Frontend
	add := func(f *Frontend) {
		users = append(users, f)
		for s := range f.shares() {
			delete(missing, s)
		}
	}
	for s := range missing {
		if f := g.users[s]; missing[s] && f != nil && !places[f.Key.WithoutKind()] && was.hasFrontend(f) {
			add(f)
		}
	}
	for _, f := range slices.Backward(was.Frontends) {
		if len(missing) == 0 {
			break
		}
		if places[f.Key.WithoutKind()] {
			continue
		}
		needed := false
		for s := range f.shares() {
			if missing[s] {
				needed, g.users[s] = true, f
			}
		}
		if needed {
			add(f)
		}
	}
	for _, f := range part.New.Frontends {
		for s := range f.shares() {
			g.users[s] = f
		}
	}
	for _, r := range []*Resolved{part.Old, part.New} {
		r.Frontends = append(r.Frontends, users...)
		slices.SortFunc(r.Frontends, func(a, b *Frontend) int { return a.Key.Compare(b.Key) })
	}
}

// poolsOf returns the pools of frontends, each once.
func poolsOf(list []*Frontend) (pools []*Pool) {
	seen := make(map[*Pool]bool)
	for _, f := range list {
		for _, p := range []*Pool{f.Outside.Pool, f.Local.Pool} {
			if !seen[p] {
				seen[p] = true
				pools = append(pools, p)
			}
		}
	}
	return pools
}

// resolved returns a service as it was last resolved; nil: it has nothing in the family. The caller holds f.mu.
func (f *family) resolved(key source.Key) *Resolved {
	if g := f.growing[key]; g != nil {
		return g.wanted
	}
	return f.state.Services[key]
}

// allResolved yields all services as they were last resolved. The caller holds f.mu.
func (f *family) allResolved() iter.Seq2[source.Key, *Resolved] {
	return func(yield func(source.Key, *Resolved) bool) {
		for key, r := range f.state.Services {
			if f.growing[key] == nil && !yield(key, r) {
				return
			}
		}
		for key, g := range f.growing {
			if g.wanted != nil && !yield(key, g.wanted) {
				return
			}
		}
	}
}

// holding returns a function that reports whether the kernel is known to hold a frontend of a service
// as it was last resolved. The caller holds f.mu; not that of the function.
func (f *family) holding(key source.Key) func(*Frontend) bool {
	ch, changed := f.changes.services[key]
	if f.growing[key] == nil && !changed || !f.holdsAny() || changed && !ch.Part {
		is := !changed && f.holdsAny()
		return func(*Frontend) bool { return is }
	}
	part := make(map[*Frontend]bool)
	if changed {
		for _, fe := range ch.New.Frontends {
			part[fe] = true
		}
		for _, fe := range ch.Old.Frontends {
			delete(part, fe)
		}
	}
	r := f.state.Services[key]
	return func(fe *Frontend) bool { return r.hasFrontend(fe) && !part[fe] }
}

// wantedState returns the State as it will be when all services are complete.
func (f *family) wantedState() *State {
	if len(f.growing) == 0 {
		return f.state
	}
	st, ch := *f.state, newChanges()
	st.Services, st.RefusedVIPs = maps.Clone(st.Services), maps.Clone(st.RefusedVIPs)
	st.Hairpins, st.BoundAddrs = maps.Clone(st.Hairpins), maps.Clone(st.BoundAddrs)
	for key, g := range f.growing {
		ch.put(&st, key, g.wanted)
	}
	return &st
}

// unfinished reports whether the kernel does not hold a service as it was last resolved.
func (f *family) unfinished(key source.Key) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, changed := f.changes.services[key]
	return changed || f.growing[key] != nil
}
