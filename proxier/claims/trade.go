package claims

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// candidates returns, in order, the files that may get what they want in this step:
// those of the step and, if one of these or a removed one owns a claim that a refused
// file wants, all refused ones. Otherwise nothing has changed for them.
func (t *Tracker) candidates(dirty map[source.UnitID]*unit) []*unit {
	moved := func(u *unit) bool {
		return u.stale || u.excess || slices.ContainsFunc(u.holders, func(h *unit) bool { return h != nil && dirty[h.ID] == h })
	}
	for _, u := range t.refused {
		if moved(u) {
			maps.Copy(dirty, t.refused)
			break
		}
	}
	return slices.SortedFunc(maps.Values(dirty), (*unit).compare)
}

// settle grants files what they want, in order, each together with those that must
// change with it. A file that cannot change now cannot change after a later one
// either, otherwise the two could have changed together. So the outcome follows from
// what all own and want, and one look at each is enough.
//
// Room is different: a file that changes later may free some. So files that lack room are examined again in that case.
func (t step) settle(files []*unit) {
	for again := true; again; {
		clear(t.failed)
		if files, again = t.settleOnce(t.withEvicted(files)); again {
			continue
		}
		for _, u := range files {
			if u.pending {
				t.refuse(u)
			}
		}
		t.restore()
		t.renew(t.refused)
		again = len(t.evicted) > 0
	}
	for _, u := range t.refused {
		t.updateConflicts(u)
	}
}

// withEvicted adds the evicted files to files, and sorts them. All evicted files are of later sources than the files before.
func (t step) withEvicted(files []*unit) []*unit {
	if len(t.evicted) == 0 {
		return files
	}
	for _, u := range files {
		delete(t.evicted, u)
	}
	files = slices.AppendSeq(files, maps.Keys(t.evicted))
	clear(t.evicted)
	slices.SortFunc(files, (*unit).compare)
	return files
}

// settleOnce examines each file once, including those that are evicted meanwhile. It returns all of them, and reports whether
// another pass is needed: because some files changed while others lack room, or because some files were not examined.
func (t step) settleOnce(files []*unit) (all []*unit, again bool) {
	changed, lacking := false, false
	var floor source.Products
	clear(t.later)
	for i := 0; i < len(files); i++ {
		if i == 0 || files[i].rank != files[i-1].rank {
			files = append(files[:i], t.withEvicted(files[i:])...)
			floor = t.floor(files[i:], files[i].rank)
		}
		u := files[i]
		if !u.pending { // it changed together with an earlier file
			continue
		}
		var team, lower []*unit
		if !t.hopeless(u, floor) && t.gather(u, &team, &lower) && !clash(team) && t.hasRoom(u, team) {
			for _, h := range lower {
				t.evict(h)
			}
			t.makeRoomFor(u.rank, team)
			t.swap(team)
			for _, f := range team {
				floor = floor.Plus(f.load)
			}
			changed = true
		} else {
			t.failed[u] = true
		}
		lacking = lacking || u.excess
	}
	return files, changed && lacking || len(t.evicted) > 0
}

// gather adds a file to a team, the files that can only change together as one owns what another wants, and all that must
// change with it. It reports whether all of them are about to release what the others want, as far as each alone shows.
// Files of later sources that own what the others want are added to lower, whether or not they release it.
func (t step) gather(u *unit, team, lower *[]*unit) bool {
	if slices.Contains(*team, u) {
		return true
	}
	*team = append(*team, u)
	t.updateConflicts(u)
	for _, h := range u.holders {
		if h != nil && h.rank > u.rank {
			*lower = append(*lower, h)
			continue
		}
		if h == nil || !h.pending || t.failed[h] || !t.gather(h, team, lower) {
			t.failed[u] = true
			return false
		}
	}
	return true
}

// clash reports whether two files of a team want the same claim, for instance because
// one keeps what another wants.
func clash(team []*unit) bool {
	if len(team) == 1 {
		return false
	}
	wanted := make(map[Claim]*unit)
	for _, u := range team {
		for _, s := range u.wanted {
			for c := range Of(s) {
				if o := wanted[c]; o != nil && o != u {
					return true
				}
				wanted[c] = u
			}
		}
	}
	return false
}

// evict takes everything that a file has in use. The version that it wants is examined again.
func (t step) evict(u *unit) {
	if !u.hasUsed {
		return
	}
	t.had[u] = former{u.used, u.usedLoad, u.usedAs}
	t.remember(u)
	t.release(u)
	t.setUsedLoad(u, source.Products{})
	u.used, u.hasUsed, u.usedAs, u.renewal, u.lacks, u.pending = nil, false, "", nil, nil, true
	t.evicted[u] = true
}

// A former is the version of a file that was in use before it was evicted.
type former struct {
	services []*source.Service
	load     source.Products
	version  string
}

// restore gives evicted files that were refused their former version back, if its claims and its room are still free.
func (t step) restore() {
	if len(t.had) == 0 {
		return
	}
	for _, u := range slices.SortedFunc(maps.Keys(t.had), (*unit).compare) {
		h := t.had[u]
		if u.hasUsed || t.exceeded(t.inFiles.Plus(h.load)) || t.anyHeld(h.services) {
			continue
		}
		t.setUsedLoad(u, h.load)
		u.used, u.hasUsed, u.usedAs = h.services, true, h.version
		t.acquire(u, u.used)
	}
	clear(t.had)
}

// anyHeld reports whether a file, or svcproxy itself, owns a claim of these services.
func (t *Tracker) anyHeld(services []*source.Service) bool {
	for _, s := range services {
		for c := range Of(s) {
			if _, held := t.claims[c]; held {
				return true
			}
		}
	}
	return false
}

// swap grants all files of a team what they want, which must be free once they have
// released what they own.
func (t step) swap(files []*unit) {
	for _, u := range files {
		t.remember(u)
		t.release(u)
	}
	for _, u := range files {
		t.acquire(u, u.wanted)
		t.accept(u)
	}
}

// updateConflicts updates why a file cannot get what it wants. One that cannot is tried again
// when a claim that it wants is touched.
func (t *Tracker) updateConflicts(u *unit) {
	if u.excess || u.waits && !u.stale {
		return
	}
	u.faults, u.holders = t.conflicts(u)
	u.stale = false
	if len(u.holders) > 0 {
		t.wait(u)
	}
}

// wait has a file tried again when a claim that it wants is touched.
func (t *Tracker) wait(u *unit) {
	if u.waits {
		return
	}
	u.waits = true
	for _, s := range u.wanted {
		for c := range Of(s) {
			t.waiting[c] = append(t.waiting[c], u)
		}
	}
}

// unwait undoes wait.
func (t *Tracker) unwait(u *unit) {
	if !u.waits {
		return
	}
	u.waits, u.stale, u.holders = false, false, nil
	for _, s := range u.wanted {
		for c := range Of(s) {
			rest := slices.DeleteFunc(t.waiting[c], func(o *unit) bool { return o == u })
			if t.waiting[c] = rest; len(rest) == 0 {
				delete(t.waiting, c)
			}
		}
	}
}
