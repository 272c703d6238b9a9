package file

import (
	"cmp"
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// complete gives the services of a step the endpoints of their lists, and adds the files whose lists are new. The caller
// holds s.mu.
func (s *lists) complete(p *plan, ch *source.Changes) {
	set := map[source.UnitID]bool{}
	for _, u := range ch.Set {
		set[u.ID] = true
	}
	if p.rulesChanged() {
		for _, f := range s.files {
			f.eachList(func(name string) { s.newLists[name] = true })
		}
	}
	if len(s.newLists) > 0 {
		for _, f := range s.usersOf(s.newLists) {
			if !set[s.id(f)] {
				u := s.outgoing(f)
				u.Changed = s.listsChanged(f.used)
				ch.Set = append(ch.Set, u)
			}
		}
		clear(s.newLists)
	}
	files, first := map[string]int{}, map[string]string{} // with services that a list does not fit, and why
	for i := range ch.Set {
		f := s.files[s.place.name(ch.Set[i].ID.Name)]
		if f == nil || f.used == nil {
			continue
		}
		was := cmp.Or(f.bound, &read.Bound{}).Faults
		s.bind(p, f, &ch.Set[i])
		for name, faults := range cmp.Or(f.bound, &read.Bound{}).Faults {
			if len(was[name]) == 0 || was[name][0] != faults[0] {
				files[name], first[name] = files[name]+1, cmp.Or(first[name], faults[0].String())
			}
		}
	}
	for _, name := range sortedNames(files) {
		s.log.Warn("a list of endpoints does not fit some services; they keep the endpoints they have, if any",
			"list", name, "files", files[name], "first", first[name])
	}
	s.boundBy = p.revision
}

// listsChanged returns when the new lists that v refers to were changed.
func (s *lists) listsChanged(v *read.Version) (at []time.Time) {
	for name := range v.Lists {
		if f := s.files[name]; s.newLists[name] && f != nil && f.stamp != (disk.Stamp{}) {
			at = append(at, f.stamp.Changed())
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// bind sets the services of a unit, and notes them in f. Where another version is in use that refers to lists, they
// count for that, too.
func (s *lists) bind(p *plan, f *state, u *source.Unit) {
	of := func(v *read.Version) *read.Bound {
		if v == nil || len(v.Lists) == 0 {
			return nil
		}
		return p.of(f, v)
	}
	used, inUse := of(f.used), of(f.good)
	f.bound, f.inUse = used, inUse
	if used != nil {
		u.Services = used.Services
	}
	for i, v := range f.sent {
		switch v.Version {
		case f.used:
			f.sent[i].bound = used
		case f.good:
			f.sent[i].bound = inUse
		}
	}
	if inUse != nil && f.good != f.used {
		u.InUse = &source.Unit{ID: u.ID, Version: f.good.Name(), Services: inUse.Services}
	}
	s.noteKeeping(f)
}

// noteKeeping notes whether lists do not fit services of f, and what these keep.
func (s *lists) noteKeeping(f *state) {
	name := f.name
	delete(s.keeping, name)
	f.keeps = nil
	for _, b := range []*read.Bound{f.bound, f.inUse} {
		if b == nil || len(b.Faults) == 0 {
			continue
		}
		s.keeping[name] = f
		for _, l := range b.Kept {
			if l != nil && !slices.Contains(f.keeps, l) {
				f.keeps = append(f.keeps, l)
			}
		}
	}
}

// Recall returns what a state directory says of the files of a directory, by name: what a daemon that starts now would give them
// back before it reads what they say, and bind them to. It writes nothing. Without a right to read there is nothing, and
// without a state directory, empty, neither.
func Recall(rules read.Rules, dir, stateDir string) (units map[string]source.Unit, before read.Before) {
	s := New(Options{Dir: dir, StateDir: stateDir, Rules: rules})
	units, before = map[string]source.Unit{}, read.Before{Bound: map[string]*read.Bound{}, Lists: map[string]*read.Version{}}
	if s.store == nil {
		return units, before
	}
	s.store.Load()
	s.loadDecisions(time.Now())
	rules.From.Accepted = true
	var ch source.Changes
	for _, name := range s.store.Names() {
		rec, _ := s.store.Find(name)
		data, err := s.store.Read(name, rec)
		if err != nil {
			if _, text, what := s.store.StandIn(name, rec); what != "" {
				data, err = text, nil
			}
		}
		v := read.NewVersion(context.Background(), s.path(name), data, err, rules, read.Rules.ParseCopy, nil)
		if v.Broken {
			continue
		}
		f := &state{name: name, path: v.Path, used: v, handed: handed{good: v, claimedAt: rec.Since}}
		if s.files[name] = f; f.isList() {
			before.Lists[name] = v
		} else {
			ch.Set = append(ch.Set, s.outgoing(f))
		}
	}
	s.complete(s.newPlan(nil), &ch)
	for _, u := range ch.Set {
		name := s.place.name(u.ID.Name)
		units[name], before.Bound[name] = u, s.files[name].bound
	}
	return units, before
}
