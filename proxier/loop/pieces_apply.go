package loop

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// put has a service come to be as wanted in the next Sync or, if that is a large change, in several.
// It reports whether that changes anything. The caller holds f.mu.
func (f *family) put(key source.Key, wanted *policy.Resolved, queued time.Time) (changed bool) {
	was, before := f.state.Services[key], f.growing[key]
	most := largePieces * f.piece()
	if f.full || f.news.err != nil || before == nil && !isLarge(f.piecer(), most, was, wanted) {
		delete(f.growing, key)
		if changed = f.changes.Put(f.state, key, wanted) || before != nil; changed {
			f.queue(queued)
		}
		return changed
	}
	delete(f.growing, key)
	if was == nil {
		was = &policy.Resolved{Key: key}
	}
	g, now := newGrowth(f.piecer(), was, wanted)
	g.between = f.between(was, wanted)
	if f.state.Services[key] != nil {
		f.state.Services[key] = now
	}
	if g.left == 0 && (f.state.Services[key] == nil && wanted == nil || sameService(now, wanted)) {
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
		if ch, again := f.changes.Services[key]; again { // another service may have what the last Sync did not yet take from it
			f.apply(g, g.touched(&ch))
		}
	}
	return true
}

// sameService reports whether two services with the same frontends are equal.
func sameService(r, o *policy.Resolved) bool {
	return o != nil && slices.Equal(r.RefusedVIPs, o.RefusedVIPs) && slices.Equal(r.BoundAddrs, o.BoundAddrs) &&
		slices.Equal(r.HairpinPools, o.HairpinPools) && slices.Equal(r.Announced, o.Announced) && slices.Equal(r.Warnings, o.Warnings)
}

// queue notes when a change arrived that the next Sync has.
func (f *family) queue(at time.Time) {
	if f.queued.IsZero() {
		f.queued = at
	}
}

// piecer says how a large change is cut in pieces.
func (f *family) piecer() proxier.Piecer {
	if p, ok := f.backend.(proxier.Piecer); ok {
		return p
	}
	return aPiecer{}
}

// piece returns the size of a piece.
func (f *family) piece() int { return cmp.Or(f.cfg.Piece, f.piecer().PieceSize()) }

// between returns what a service has while it grows, whatever its frontends are by then. VIPs that it
// adds to the refused ones, and addresses that it adds to the announced ones, come with the last piece.
// Those that it gives up go with the first.
func (f *family) between(was, wanted *policy.Resolved) policy.Resolved {
	r := policy.Resolved{Key: was.Key}
	if wanted == nil {
		return r
	}
	r.Warnings = wanted.Warnings
	for _, a := range wanted.RefusedVIPs {
		if f.state.RefusedVIPs[a] > 0 || f.changes.VIPs[a] < 0 {
			r.RefusedVIPs = append(r.RefusedVIPs, a)
		}
	}
	had := make(map[policy.Announcement]bool, len(was.Announced))
	for _, n := range was.Announced {
		had[n] = true
	}
	r.Announced = lists.Keep(wanted.Announced, func(n policy.Announcement) bool { return had[n] })
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
	todo := slices.Collect(maps.Values(f.changes.Services))
	g := f.nextGrowing()
	f.lastGrown = g.key
	todo = append(todo, f.apply(g, g.next(f.piece())))
	for ; len(todo) > 0; todo = todo[1:] {
		for key, g := range f.growing {
			if key == todo[0].Key() {
				continue
			}
			if piece := g.touched(&todo[0]); len(piece) > 0 {
				todo = append(todo, f.apply(g, piece))
			}
		}
	}
}

// nextGrowing returns the service whose turn it is to grow: they take turns in the order of their names.
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
func (f *family) apply(g *growth, piece []int) policy.ServiceChange {
	f.revision.Add(1)
	was, all := f.state.Services[g.key], f.state.Services[g.key]
	if was == nil {
		was = &policy.Resolved{Key: g.key}
	}
	slices.Sort(piece)
	part := policy.ServiceChange{Old: &policy.Resolved{Key: g.key}, New: &policy.Resolved{Key: g.key}, Part: true}
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
	part.Old.Pools, part.New.Pools = policy.PoolsOf(part.Old.Frontends), policy.PoolsOf(part.New.Frontends)
	f.changes.Recount(f.state, was, now)
	if f.state.Services[g.key] = now; now == nil {
		delete(f.state.Services, g.key)
	}
	f.changes.NotePart(g.key, all, now, part)
	return part
}

// count updates uses, users are found later.
func (g *growth) count(part *policy.ServiceChange) {
	for _, f := range part.Old.Frontends {
		for s := range sharesOf(f) {
			if g.uses[s]--; g.uses[s] == 0 {
				delete(g.uses, s)
			}
		}
	}
	for _, f := range part.New.Frontends {
		for s := range sharesOf(f) {
			g.uses[s]++
		}
	}
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
		r.Pools = lists.Keep(g.wanted.Pools, g.inUse)
		r.HairpinPools = lists.Keep(g.wanted.HairpinPools, func(p *policy.Pool) bool { return g.hairpin[p] })
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
		if a := f.Key.Addr; (n == 0 || r.BoundAddrs[n-1] != a) && f.Key.Kind != policy.NodePort && g.bound[a] {
			r.BoundAddrs = append(r.BoundAddrs, a)
		}
	}
	return &r
}

// inUse reports whether a frontend in the State has a pool.
func (g *growth) inUse(p *policy.Pool) bool { return g.uses[share{outside: policy.Route{Pool: p}}] > 0 }

// hairpins counts the targets of pools that may reach themselves from a piece on, or no more.
func (f *family) hairpins(g *growth, part *policy.ServiceChange) {
	set := func(p *policy.Pool, is bool) {
		if g.hairpin[p] == is {
			return
		}
		by := 1
		if g.hairpin[p] = is; !is {
			delete(g.hairpin, p)
			by = -1
		}
		for _, t := range p.Targets {
			h := policy.NewHairpin(t.AddrPort, p.Protocol)
			had := g.targets[h]
			if g.targets[h] += by; g.targets[h] == 0 {
				delete(g.targets, h)
			}
			if had == 0 || had+by == 0 {
				policy.CountAll(f.state.Hairpins, f.changes.Hairpins, slices.Values([]policy.Hairpin{h}), by)
			}
		}
	}
	for _, p := range policy.PoolsOf(part.New.Frontends) {
		if g.pools[p] {
			set(p, true)
		}
	}
	for _, p := range policy.PoolsOf(part.Old.Frontends) {
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
func findPlace(list []*policy.Frontend, place policy.FrontendKey) (int, bool) {
	return slices.BinarySearchFunc(list, place, func(f *policy.Frontend, k policy.FrontendKey) int { return f.Key.WithoutKind().Compare(k) })
}

// hasFrontend reports whether this very frontend is one of the service.
func hasFrontend(r *policy.Resolved, f *policy.Frontend) bool {
	if r == nil {
		return false
	}
	i, found := findPlace(r.Frontends, f.Key.WithoutKind())
	return found && r.Frontends[i] == f
}

// addUsers adds to both sides of a part one frontend that stays for each share that others need, too.
func (g *growth) addUsers(part *policy.ServiceChange, was *policy.Resolved) {
	places, own, missing := make(map[policy.FrontendKey]bool), make(map[share]int), make(map[share]bool)
	for _, f := range part.New.Frontends {
		places[f.Key.WithoutKind()] = true
		for s := range sharesOf(f) {
			own[s]++
		}
	}
	for _, f := range part.Old.Frontends {
		places[f.Key.WithoutKind()] = true
	}
	for _, r := range []*policy.Resolved{part.Old, part.New} {
		for _, f := range r.Frontends {
			for s := range sharesOf(f) {
				if g.uses[s] > own[s] {
					missing[s] = true
				}
			}
		}
	}
	var users []*policy.Frontend
	add := func(f *policy.Frontend) {
		users = append(users, f)
		for s := range sharesOf(f) {
			delete(missing, s)
		}
	}
	for s := range missing {
		if f := g.users[s]; missing[s] && f != nil && !places[f.Key.WithoutKind()] && hasFrontend(was, f) {
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
		for s := range sharesOf(f) {
			if missing[s] {
				needed, g.users[s] = true, f
			}
		}
		if needed {
			add(f)
		}
	}
	for _, f := range part.New.Frontends {
		for s := range sharesOf(f) {
			g.users[s] = f
		}
	}
	for _, r := range []*policy.Resolved{part.Old, part.New} {
		r.Frontends = append(r.Frontends, users...)
		slices.SortFunc(r.Frontends, func(a, b *policy.Frontend) int { return a.Key.Compare(b.Key) })
	}
}
