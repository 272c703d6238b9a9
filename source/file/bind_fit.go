package file

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// What is used of files of services and of lists has to fit together: an endpoint may be of a family
// that a service has no address of, or have a port that it does not have. Of what counts in a
// step as much is used as fits; the rest is taken for broken, and tried again with each step
// in which such a file counts. Where a new list does not fit a service, the list waits if the one before
// it fits, else the file of the service.

// A fitting finds out what of a step can be used.
type fitting struct {
	*Source
	next    map[*state]*version // what is to be used, of files that count now; of others it is what is used
	known   map[*state]bindings
	misfits map[*state][]source.Fault // why a file cannot be used
	stuck   map[*state]bool           // files that do not fit, and have nothing to go back to
}

// fit returns why some of these versions, which are good, cannot be used with what the others say.
func (s *Source) fit(next map[*state]*version) map[*state][]source.Fault {
	t := fitting{s, maps.Clone(next), map[*state]bindings{}, map[*state][]source.Fault{}, map[*state]bool{}}
	users := t.users()
	for range 2 * (len(users) + len(next) + 1) { // each round takes one away
		f, list, faults := t.worst(users)
		if f == nil {
			break
		}
		t.giveUp(f, list, faults)
	}
	return t.misfits
}

// version returns what is to be used of a file; nil: nothing.
func (t *fitting) version(f *state) *version {
	if v, ok := t.next[f]; ok {
		return v
	}
	return f.used
}

// users returns the files of services for which it matters what is in next.
func (t *fitting) users() (users []*state) {
	lists := map[string]bool{}
	for f := range t.next {
		if f.isList() {
			lists[filepath.Base(f.path)] = true
		}
	}
	all := t.fitted != t.revision.Load() // what the host can do has changed
	for _, name := range sortedNames(t.files) {
		f := t.files[name]
		v := t.version(f)
		if v == nil || len(v.lists) == 0 {
			continue
		}
		if _, counts := t.next[f]; counts || all || refersTo(v, lists) {
			users = append(users, f)
		}
	}
	return users
}

func refersTo(v *version, lists map[string]bool) bool {
	for name := range v.lists {
		if lists[name] {
			return true
		}
	}
	return false
}

// worst returns the first file that cannot be used with a list, and why; nil: all can.
func (t *fitting) worst(users []*state) (*state, string, []source.Fault) {
	for _, f := range users {
		v := t.version(f)
		if v == nil || t.stuck[f] {
			continue
		}
		b := t.rules.bindVersion(v, t.listToUse, t.knownOf(f))
		maps.Copy(t.knownOf(f), b.known)
		for _, name := range slices.Sorted(maps.Keys(b.faults)) {
			return f, name, b.faults[name]
		}
	}
	return nil, "", nil
}

// knownOf returns what is bound of a file.
func (t *fitting) knownOf(f *state) bindings {
	if t.known[f] == nil {
		t.known[f] = bindings{}
		if t.fitted == t.revision.Load() {
			maps.Copy(t.known[f], f.bound)
		}
	}
	return t.known[f]
}

// listToUse returns the list of a name, if the step is as it is planned.
func (t *fitting) listToUse(name string) (*endpointList, string) {
	l := t.files[name]
	if l == nil {
		return nil, lacksList
	}
	return listOf(l, t.version(l))
}

func listOf(f *state, v *version) (*endpointList, string) {
	switch {
	case v != nil && v.list != nil:
		return v.list, ""
	case f.hold != nil && f.hold.state == source.Held:
		return nil, heldList
	case f.next != nil && f.next.broken:
		return nil, brokenList(f.next)
	case f.seen != nil && f.seen.broken:
		return nil, brokenList(f.seen)
	}
	return nil, lacksList
}

// giveUp takes a file out of the step that does not fit, or the list that it does not fit.
func (t *fitting) giveUp(f *state, list string, faults []source.Fault) {
	l, counts := t.files[list], false
	if l != nil {
		_, counts = t.next[l]
	}
	_, itself := t.next[f]
	if counts && (!itself || l.used != nil && t.fitsWithUsed(f, list)) {
		f, itself = l, true
	}
	t.stuck[f] = !itself
	delete(t.next, f)
	t.misfits[f] = faults
}

// fitsWithUsed reports whether a file fits the list of a name as that is used.
func (t *fitting) fitsWithUsed(f *state, list string) bool {
	b := t.rules.bindVersion(t.version(f), func(name string) (*endpointList, string) {
		if name == list {
			return listOf(t.files[name], t.files[name].used)
		}
		return t.listToUse(name)
	}, t.knownOf(f))
	return len(b.faults[list]) == 0
}

// refuseMisfits has those of a step count as broken that cannot be used with the others, adds what
// could not before and is to be tried again, and returns all. The caller holds s.mu.
func (s *Source) refuseMisfits(due []*probe) []*probe {
	if !s.mayMisfit(due) {
		s.fitted = s.revision.Load()
		return due
	}
	due, s.refit = s.tryAgain(due), false
	next := map[*state]*version{}
	for _, p := range due {
		if !p.f.next.broken {
			next[p.f] = p.f.next
		}
	}
	misfits := s.fit(next)
	s.fitted = s.revision.Load()
	for _, name := range sortedNames(s.files) { // those for which what the host can do has changed
		if f := s.files[name]; misfits[f] != nil && next[f] == nil && f.next == nil && f.used != nil && f.used == f.seen {
			f.next = f.used
			due = append(due, &probe{name: name, f: f, at: time.Now()})
		}
	}
	return slices.DeleteFunc(due, func(p *probe) bool { return s.setMisfit(p.f, misfits[p.f]) })
}

// mayMisfit reports whether a step has anything to do with lists.
func (s *Source) mayMisfit(due []*probe) bool {
	uses := func(p *probe) bool {
		return p.f.isList() || len(p.f.next.lists) > 0 || p.f.used != nil && len(p.f.used.lists) > 0
	}
	return s.refit || s.fitted != s.revision.Load() || slices.ContainsFunc(due, uses)
}

// tryAgain adds files that would be good, except for others, unless they have something newer.
func (s *Source) tryAgain(due []*probe) []*probe {
	for _, name := range sortedNames(s.files) {
		if f := s.files[name]; s.waitsToFit(name, f) {
			f.next = f.seen.whole
			due = append(due, &probe{name: name, f: f, at: time.Now()})
		}
	}
	return due
}

// waitsToFit reports whether a file would be good, except for others, and has nothing newer. One that was rolled back
// stays so.
func (s *Source) waitsToFit(name string, f *state) bool {
	if f.seen == nil || f.seen.whole == nil || f.next != nil {
		return false
	}
	pin := s.decisions.pins[name]
	return pin == nil || pin.found != f.seen.id
}

// setMisfit has what is next of a file count as broken for these faults; nil: for none. It returns
// true when that is so already.
func (s *Source) setMisfit(f *state, faults []source.Fault) bool {
	if faults == nil {
		return false
	}
	if f.seen != nil && f.seen.whole == f.next {
		f.seen, f.next = f.next.unfit(faults), nil // as before, perhaps in other words; a large read may have the other
		return true
	}
	f.next = f.next.unfit(faults)
	return false
}
