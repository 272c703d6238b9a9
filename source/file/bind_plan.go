package file

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// A plan is what a step makes of files and lists. Lists and files that are held leave it, and what is bound then
// follows from the rest.
type plan struct {
	*lists
	next     map[*state]*read.Version // what is to be used, good by itself; read.Gone of a file that goes
	bound    map[*read.Version]*read.Bound
	places   read.Places
	revision int64
	back     map[string][]*read.Version // where a trial goes back: what services kept when it began, by name of the list
}

// newPlan returns a plan of what counts in a step. The caller holds s.mu.
func (s *lists) newPlan(next map[*state]*read.Version) *plan {
	return &plan{lists: s, next: next, bound: map[*read.Version]*read.Bound{}, places: read.Places{}, revision: s.revision.Load()}
}

// without takes files and lists out of a plan that are held.
func (p *plan) without(held map[*state]string) {
	for f := range held {
		delete(p.next, f)
	}
	clear(p.bound)
}

// of returns a version of a file with its lists as they are planned.
func (p *plan) of(f *state, v *read.Version) *read.Bound {
	b := p.bound[v]
	if b != nil || len(v.Lists) == 0 {
		return cmp.Or(b, &read.Bound{Version: v, Services: v.Services})
	}
	var known []read.Bindings
	for _, was := range []*read.Bound{f.bound, f.inUse} {
		if was != nil && !p.rulesChanged() {
			known = append(known, was.Known)
		}
	}
	var kept map[string][]*read.Version
	if !p.synced && f.good != nil { // what services kept before this start
		kept = map[string][]*read.Version{}
		maps.Copy(kept, p.decisions.kept)
	}
	if p.back != nil {
		b = p.rules.Bind(v, p.list, nil, p.back, p.places, known...)
	}
	if b == nil || b.Unfit {
		b = p.rules.Bind(v, p.list, f.base(v), kept, p.places, known...)
	}
	p.bound[v] = b
	return b
}

// base returns what services of a version keep where the lists in use do not fit them: what is in use.
func (f *state) base(v *read.Version) *read.Bound {
	if f.bound.Of(v) {
		return f.bound
	}
	return f.inUse
}

// rulesChanged reports whether what this host can do has changed since services were bound.
func (p *plan) rulesChanged() bool { return p.revision != p.boundBy }

// list looks up a list as it is planned.
func (p *plan) list(name string) (*read.Version, string) {
	l := p.files[name]
	if l == nil {
		return nil, read.LacksList
	}
	v, counts := p.next[l]
	if !counts {
		v = l.used
	}
	switch {
	case v != nil && v.List != nil:
		return v, ""
	case v == read.Gone:
	case l.hold != nil && l.hold.State == source.Held:
		return nil, read.HeldList
	case l.next != nil && l.next.Broken:
		return nil, read.BrokenList(l.next)
	case l.seen != nil && l.seen.Broken:
		return nil, read.BrokenList(l.seen)
	}
	return nil, read.LacksList
}

// usersOf returns the files, as they are in use or handed on, that refer to one of these lists, sorted by name.
func (s *lists) usersOf(lists map[string]bool) (users []*state) {
	for _, name := range sortedNames(s.files) {
		if f := s.files[name]; refersTo(f.used, lists) || refersTo(f.good, lists) {
			users = append(users, f)
		}
	}
	return users
}

func refersTo(v *read.Version, lists map[string]bool) bool {
	for name := range lists {
		if v != nil && v.Lists[name] != nil {
			return true
		}
	}
	return false
}

// takeUnfit takes the files out of a plan that fit no version of a list.
func (p *plan) takeUnfit() map[*state]*read.Version {
	unfit := map[*state]*read.Version{}
	for f, v := range p.next {
		if p.of(f, v).Unfit {
			unfit[f] = v
			delete(p.next, f)
		}
	}
	return unfit
}

// refuse has files count as broken that do not fit. It returns the rest of what is due, with those whose faults are new.
func (p *plan) refuse(due []*probe, unfit map[*state]*read.Version) []*probe {
	return slices.DeleteFunc(due, func(pr *probe) bool {
		f := pr.f
		v := unfit[f]
		if v == nil {
			return false
		}
		u := v.Unfit(p.of(f, v).AllFaults())
		if f.seen != nil && f.seen.Original == v {
			f.seen, f.next = u, nil // as before, perhaps in other words
			return true
		}
		f.next = u
		return false
	})
}

// tryAgain adds files that were refused because of their lists, and have nothing newer: those for which anything may have changed.
func (p *plan) tryAgain(due []*probe) []*probe {
	lists := map[string]bool{}
	for _, pr := range due {
		if pr.f.isList() && (!pr.f.next.Broken || pr.f.used == nil) {
			lists[pr.name] = true
		}
	}
	all := p.refit || p.rulesChanged()
	if p.refit = false; !all && len(lists) == 0 {
		return due
	}
	for _, name := range sortedNames(p.files) {
		if f := p.files[name]; p.waitsToFit(name, f) && (all || refersTo(f.seen.Original, lists)) {
			f.next = f.seen.Original
			due = append(due, &probe{name: name, f: f, at: time.Now()})
		}
	}
	return due
}

// waitsToFit reports whether a file would be good, except for its lists, and has nothing newer. One that was rolled back
// stays so. One that was judged by former rules is read again first: its share may be another by now.
func (s *lists) waitsToFit(name string, f *state) bool {
	if f.seen == nil || f.seen.Original == nil || f.next != nil || f.seen.Original.Revision.Load() != s.revision.Load() {
		return false
	}
	pin := s.decisions.pins[name]
	return pin == nil || pin.Found != f.seen.ID
}
