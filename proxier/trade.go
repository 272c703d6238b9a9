package proxier

import (
	"slices"

	"svcproxy/source"
)

// candidates returns, in order, the files that may get what they want in this
// step: those of the step, and, where one of these or one that went has something
// of a refused one, all refused ones. For these nothing has changed otherwise.
func (t *Tracker) candidates(dirty map[source.UnitID]*unit) []*unit {
	moved := func(u *unit) bool {
		return u.stale || slices.ContainsFunc(u.holders, func(h *unit) bool { return h != nil && dirty[h.ID] == h })
	}
	for _, u := range t.refused {
		if moved(u) {
			for id, r := range t.refused {
				dirty[id] = r
			}
			break
		}
	}
	return t.inOrder(dirty)
}

// settle gives files what they want, in order, each together with those that must
// change at once with it. Who cannot have it now cannot have it after that either:
// otherwise the two could have changed at once. So what becomes of them follows from what
// all have and want, and one look at each is enough.
func (t step) settle(files []*unit) {
	for _, u := range files {
		if !u.pending { // it changed with one before it
			continue
		}
		if team := new(team); t.gather(u, team) && !team.clashes() {
			t.swap(team.files)
		} else {
			t.failed[u] = true
		}
	}
	for _, u := range files {
		if u.pending {
			t.refuse(u)
		}
	}
	for _, u := range t.refused {
		t.look(u)
	}
}

// A team is files that can have what they want only at once: one has what another wants.
type team struct{ files []*unit }

// gather adds a file to a team, and all that must change with it. It reports
// whether all of them want something else than what they have of each other's, as
// far as one can see of each alone.
func (t step) gather(u *unit, team *team) bool {
	if slices.Contains(team.files, u) {
		return true
	}
	team.files = append(team.files, u)
	t.look(u)
	for _, h := range u.holders {
		if h == nil || !h.pending || t.failed[h] || !t.gather(h, team) {
			t.failed[u] = true
			return false
		}
	}
	return true
}

// clashes reports whether two files of a team want the same. A file that keeps what
// another one wants is such a case.
func (t *team) clashes() bool {
	if len(t.files) == 1 {
		return false
	}
	wanted := make(map[claim]*unit)
	for _, u := range t.files {
		for _, s := range u.wanted {
			for c := range claims(s) {
				if o := wanted[c]; o != nil && o != u {
					return true
				}
				wanted[c] = u
			}
		}
	}
	return false
}

// swap gives all files of a team what they want, which must be free when they
// have left what they have.
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

// look brings up to date why a file cannot have what it wants. One that cannot is
// looked at again when something it wants was touched.
func (t *Tracker) look(u *unit) {
	if u.waits && !u.stale {
		return
	}
	u.faults, u.holders = t.conflicts(u)
	u.stale = false
	if len(u.holders) > 0 {
		t.wait(u)
	}
}

// wait has a file looked at again when something it wants is touched.
func (t *Tracker) wait(u *unit) {
	if u.waits {
		return
	}
	u.waits = true
	for _, s := range u.wanted {
		for c := range claims(s) {
			t.waiting[c] = append(t.waiting[c], u)
		}
	}
}

// unwait takes back wait.
func (t *Tracker) unwait(u *unit) {
	if !u.waits {
		return
	}
	u.waits, u.stale, u.holders = false, false, nil
	for _, s := range u.wanted {
		for c := range claims(s) {
			rest := slices.DeleteFunc(t.waiting[c], func(o *unit) bool { return o == u })
			if t.waiting[c] = rest; len(rest) == 0 {
				delete(t.waiting, c)
			}
		}
	}
}
