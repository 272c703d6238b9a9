package claims

import (
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// Room is what the limits allow all services together to expand to. Room is granted in the order of claims: accepted files of
// a source keep their room, then come its other files in order, then the files of the next source, and at last objects, the
// oldest first. If a file lacks room, files of later sources are evicted, the last in order first. If that would not be enough,
// no file is evicted, and the file is refused. An object without room is left out. Both are granted room as soon as there is
// enough. Their claims are not examined before that.

// Limit sets how much all services together may be multiplied to. Without a call there is no limit. Only the first Apply may follow it.
func (t *Tracker) Limit(limits source.Products) { t.limits = &limits }

// exceeded reports whether a sum exceeds a limit.
func (t *Tracker) exceeded(sum source.Products) bool {
	return t.limits != nil && t.limits.Exceeded(sum, "") != nil
}

// setUsedLoad records the load of the version of a file that is in use.
func (t *Tracker) setUsedLoad(u *unit, load source.Products) {
	t.inFiles = t.inFiles.Minus(u.usedLoad).Plus(load)
	t.ofRank[u.rank] = t.ofRank[u.rank].Minus(u.usedLoad).Plus(load)
	u.usedLoad = load
}

// withoutLater returns the load of the files in use, without files of sources after rank.
func (t *Tracker) withoutLater(rank int) (sum source.Products) {
	for r, load := range t.ofRank {
		if r <= rank {
			sum = sum.Plus(load)
		}
	}
	return sum
}

// floor returns the load of the files in use, without pending files and files of sources after rank.
func (t step) floor(files []*unit, rank int) source.Products {
	sum := t.withoutLater(rank)
	for _, u := range files {
		if u.pending && u.rank <= rank {
			sum = sum.Minus(u.usedLoad)
		}
	}
	return sum
}

// hopeless reports whether a file is too much even if all others that are about to change were gone. What it claims is then
// not looked at: that may be more than can be kept.
func (t step) hopeless(u *unit, floor source.Products) bool {
	u.excess = false
	if t.exceeded(floor.Plus(u.load)) {
		t.exceed(u, floor)
	}
	return u.excess
}

// hasRoom reports whether there is room for what a team wants once files of later sources than that of u are evicted. If not, it
// records the reason in u.
func (t step) hasRoom(u *unit, team []*unit) bool {
	others := t.withoutLater(u.rank)
	for _, f := range team {
		if others = others.Minus(f.usedLoad); f != u {
			others = others.Plus(f.load)
		}
	}
	if !t.exceeded(others.Plus(u.load)) {
		return true
	}
	t.exceed(u, others)
	return false
}

// makeRoomFor evicts files of sources after rank until there is room for what a team wants.
func (t step) makeRoomFor(rank int, team []*unit) {
	var less, more source.Products
	for _, u := range team {
		less, more = less.Plus(u.usedLoad), more.Plus(u.load)
	}
	t.makeRoom(rank, less, more)
}

// makeRoom evicts files of sources after rank, the last in order first, until the load less can be replaced by the load more.
func (t step) makeRoom(rank int, less, more source.Products) {
	lacking := func() bool { return t.exceeded(t.inFiles.Minus(less).Plus(more)) }
	if !lacking() {
		return
	}
	later, known := t.later[rank]
	if !known {
		for _, u := range t.units {
			if u.rank > rank && u.hasUsed {
				later = append(later, u)
			}
		}
		slices.SortFunc(later, (*unit).compare)
	}
	n := len(later)
	for ; n > 0 && lacking(); n-- {
		t.evict(later[n-1])
	}
	t.later[rank] = later[:n]
}

// exceed notes that there is no room for a unit beside others, and why.
func (t *Tracker) exceed(u *unit, others source.Products) {
	u.excess, u.stale, u.holders, u.faults = true, true, nil, nil
	for _, s := range u.wanted {
		others = others.Plus(s.Products())
		if t.exceeded(others) {
			p := t.limits.Exceeded(others, fmt.Sprintf("service %q: with it all services", s.Key))
			u.faults = []source.Fault{{Pos: s.NamePos(), Msg: p.Msg, Hint: p.Hint}}
			return
		}
	}
}

// admit decides which objects there is room for beside files. As long as there is room for all it costs nothing.
func (t step) admit() {
	all := !t.exceeded(t.inFiles.Plus(t.objects.load))
	if all && t.objects.excess == 0 {
		return
	}
	sum := t.inFiles
	t.objects.excess = 0
	for _, u := range slices.SortedFunc(maps.Values(t.units), (*unit).compare) {
		if !u.Partial {
			continue
		}
		was := u.excess
		if u.excess = !all && t.exceeded(sum.Plus(u.load)); u.excess {
			t.exceed(u, sum)
			t.objects.excess++
		} else {
			sum = sum.Plus(u.load)
		}
		if u.excess != was {
			t.objects.dirty[u] = true
		}
	}
}
