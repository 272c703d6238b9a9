package claims

import (
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// All services together may be multiplied to no more than the limits. Room goes the way of claims: a file that
// was accepted keeps it, then come files in order, then objects, the oldest first. A file with which all would be
// more is refused, an object is left out; both get room as soon as there is some. What they claim is not looked at before.

// Limit sets how much all services together may be multiplied to. Without a call there is no limit. Only the first Apply may follow it.
func (t *Tracker) Limit(limits source.Products) { t.limits = &limits }

// exceeded reports whether a sum exceeds a limit.
func (t *Tracker) exceeded(sum source.Products) bool {
	return t.limits != nil && t.limits.Exceeded(sum, "") != nil
}

// floor is how much there is without the files that are about to change.
func (t step) floor(files []*unit) source.Products {
	sum := t.inFiles
	for _, u := range files {
		if u.pending {
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

// hasRoom reports whether there is room for what a team wants, and says of u why not.
func (t step) hasRoom(u *unit, team []*unit) bool {
	others := t.inFiles
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
