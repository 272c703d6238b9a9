package file

import (
	"maps"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// What is used of files of services and of lists has to fit together: an endpoint may be of a family
// that a service has no address of, or have a port that it does not have. Of what counts in a
// step as much is used as fits; the rest is taken for broken. It is tried again in a step where some file
// that is due is connected with it through lists (touched), and all of it where refit is set or the rules
// have a new revision, see tryAgain. Where a new list does not fit a service, the list waits if the one
// before it fits, else the file of the service.

// A fitting finds out what of a step can be used.
type fitting struct {
	*Source
	next    map[*state]*read.Version // what is to be used, of files that count now; of others it is what is used
	known   map[*state]read.Bindings
	misfits map[*state][]source.Fault // why a file cannot be used
	stuck   map[*state]bool           // files that do not fit, and have nothing to go back to
}

// fit returns why some of these versions, which are good, cannot be used with what the others say.
func (s *Source) fit(next map[*state]*read.Version) map[*state][]source.Fault {
	t := fitting{s, maps.Clone(next), map[*state]read.Bindings{}, map[*state][]source.Fault{}, map[*state]bool{}}
	queue := t.users()
	of := map[string][]*state{} // by the lists that they refer to
	for _, f := range queue {
		for name := range f.listNames() {
			of[name] = append(of[name], f)
		}
	}
	queued := map[*state]bool{}
	for len(queue) > 0 {
		f := queue[0]
		queue, queued[f] = queue[1:], false
		faults := t.faultsWith(f)
		if len(faults) == 0 {
			continue
		}
		again := []*state{f}
		for _, l := range t.giveUp(f, faults) { // each at most once
			again = append(again, of[filepath.Base(l.path)]...)
		}
		for _, f := range again {
			if !queued[f] {
				queue, queued[f] = append(queue, f), true
			}
		}
	}
	return t.misfits
}

// version returns what is to be used of a file; nil: nothing.
func (t *fitting) version(f *state) *read.Version {
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
		if v == nil || len(v.Lists) == 0 {
			continue
		}
		if _, counts := t.next[f]; counts || all || refersTo(v, lists) {
			users = append(users, f)
		}
	}
	return users
}

func refersTo(v *read.Version, lists map[string]bool) bool {
	for name := range v.Lists {
		if lists[name] {
			return true
		}
	}
	return false
}

// faultsWith returns why a file cannot be used with its lists, by their names.
func (t *fitting) faultsWith(f *state) map[string][]source.Fault {
	v := t.version(f)
	if v == nil || t.stuck[f] {
		return nil
	}
	b := t.rules.BindVersion(v, t.listToUse, t.knownOf(f))
	maps.Copy(t.knownOf(f), b.Known)
	return b.Faults
}

// knownOf returns what is bound of a file.
func (t *fitting) knownOf(f *state) read.Bindings {
	if t.known[f] == nil {
		t.known[f] = read.Bindings{}
		if t.fitted == t.revision.Load() {
			maps.Copy(t.known[f], f.bindings)
		}
	}
	return t.known[f]
}

// listToUse returns the list of a name, if the step is as it is planned.
func (t *fitting) listToUse(name string) (*read.EndpointList, string) {
	l := t.files[name]
	if l == nil {
		return nil, read.LacksList
	}
	return listOf(l, t.version(l))
}

func listOf(f *state, v *read.Version) (*read.EndpointList, string) {
	switch {
	case v != nil && v.List != nil:
		return v.List, ""
	case f.hold != nil && f.hold.state == source.Held:
		return nil, read.HeldList
	case f.next != nil && f.next.Broken:
		return nil, read.BrokenList(f.next)
	case f.seen != nil && f.seen.Broken:
		return nil, read.BrokenList(f.seen)
	}
	return nil, read.LacksList
}

// giveUp takes a file out of the step that does not fit, or the lists of the step that it does not fit,
// which it returns. So each call leaves fewer in the step, or one more that is stuck.
func (t *fitting) giveUp(f *state, faults map[string][]source.Fault) (lists []*state) {
	_, itself := t.next[f]
	if itself {
		if name := t.faultOfItself(f, faults); name != "" {
			delete(t.next, f)
			t.misfits[f] = faults[name]
			return nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		l := t.files[name]
		if _, counts := t.next[l]; counts {
			lists = append(lists, l)
			delete(t.next, l)
			t.misfits[l] = faults[name]
		}
	}
	if len(lists) == 0 {
		t.stuck[f], t.misfits[f] = true, faults[slices.Min(slices.Collect(maps.Keys(faults)))]
	}
	return lists
}

// faultOfItself returns the first list that a file would not fit if those at fault stayed as they are used; empty: none.
func (t *fitting) faultOfItself(f *state, faults map[string][]source.Fault) string {
	with := t.faultsWithUsed(f, faults)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		l := t.files[name]
		if _, counts := t.next[l]; !counts || l.used == nil || len(with[name]) > 0 {
			return name
		}
	}
	return ""
}

// faultsWithUsed is faultsWith where those lists at fault are as they are used.
func (t *fitting) faultsWithUsed(f *state, faults map[string][]source.Fault) map[string][]source.Fault {
	b := t.rules.BindVersion(t.version(f), func(name string) (*read.EndpointList, string) {
		if l := t.files[name]; l != nil && len(faults[name]) > 0 {
			return listOf(l, l.used)
		}
		return t.listToUse(name)
	}, t.knownOf(f))
	maps.Copy(t.knownOf(f), b.Known)
	return b.Faults
}

// refuseMisfits has those of a step count as broken that cannot be used with the others, adds what
// could not before and is to be tried again, and returns all. The caller holds s.mu.
func (s *Source) refuseMisfits(due []*probe) []*probe {
	if !s.mayMisfit(due) {
		s.fitted = s.revision.Load()
		return due
	}
	due, s.refit = s.tryAgain(due), false
	next := map[*state]*read.Version{}
	for _, p := range due {
		if !p.f.next.Broken {
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
		return p.f.isList() || len(p.f.next.Lists) > 0 || p.f.used != nil && len(p.f.used.Lists) > 0
	}
	return s.refit || s.fitted != s.revision.Load() || slices.ContainsFunc(due, uses)
}

// tryAgain adds files that would be good, except for others, unless they have something newer: those for which
// anything may have changed.
func (s *Source) tryAgain(due []*probe) []*probe {
	all := s.refit || s.fitted != s.revision.Load()
	var touched map[*state]bool // nil: not asked for yet
	for _, name := range sortedNames(s.files) {
		f := s.files[name]
		if !s.waitsToFit(name, f) {
			continue
		}
		if touched == nil && !all {
			touched = s.touched(due)
		}
		if all || touched[f] {
			f.next = f.seen.Original
			due = append(due, &probe{name: name, f: f, at: time.Now()})
		}
	}
	return due
}

// touched returns the files that what is due refers to, or is referred to by, and so on by way of each other.
func (s *Source) touched(due []*probe) map[*state]bool {
	of := map[string][]*state{} // by the lists that files refer to, or are
	for _, f := range s.files {
		for name := range f.listNames() {
			of[name] = append(of[name], f)
		}
	}
	is := map[*state]bool{}
	queue := make([]*state, 0, len(due))
	for _, p := range due {
		queue = append(queue, p.f)
	}
	for len(queue) > 0 {
		f := queue[0]
		queue = queue[1:]
		for name := range f.listNames() {
			for _, other := range of[name] {
				if !is[other] {
					is[other], queue = true, append(queue, other)
				}
			}
			delete(of, name)
		}
	}
	return is
}

// listNames returns the names of the lists that the file refers to, as it is or as it is used, or that it is.
func (f *state) listNames() map[string]bool {
	names := map[string]bool{}
	if f.isList() {
		names[filepath.Base(f.path)] = true
	}
	f.eachList(func(name string) { names[name] = true })
	return names
}

// waitsToFit reports whether a file would be good, except for others, and has nothing newer. One that was rolled back
// stays so.
func (s *Source) waitsToFit(name string, f *state) bool {
	if f.seen == nil || f.seen.Original == nil || f.next != nil {
		return false
	}
	pin := s.decisions.pins[name]
	return pin == nil || pin.found != f.seen.ID
}

// setMisfit has what is next of a file count as broken for these faults; nil: for none. It returns
// true when that is so already. A list that is gone, and never was used, is gone all the same: the faults
// are of the files that refer to it.
func (s *Source) setMisfit(f *state, faults []source.Fault) bool {
	if faults == nil || f.next == read.Gone && f.used == nil {
		return false
	}
	if f.seen != nil && f.seen.Original == f.next {
		f.seen, f.next = f.next.Unfit(faults), nil // as before, perhaps in other words; a large read may have the other
		return true
	}
	f.next = f.next.Unfit(faults)
	return false
}
