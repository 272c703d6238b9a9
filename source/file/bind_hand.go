package file

import (
	"crypto/sha256"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/read"
)

// complete gives the services of a step the endpoints of their lists, and adds the files whose
// lists are new. The caller holds s.mu.
func (s *Source) complete(ch *source.Changes) {
	set := map[source.UnitID]bool{}
	for i := range ch.Set {
		set[ch.Set[i].ID] = true
	}
	if len(s.newLists) > 0 {
		for _, name := range sortedNames(s.files) {
			f := s.files[name]
			if f.used != nil && refersTo(f.used, s.newLists) && !set[f.id()] {
				u := s.outgoing(f)
				u.Changed = s.listsChanged(f.used)
				ch.Set = append(ch.Set, u)
			} else if f.good != nil && f.good != f.used && refersTo(f.good, s.newLists) {
				s.noteLists(name)
			}
		}
		clear(s.newLists)
	}
	for i := range ch.Set {
		switch f := s.files[filepath.Base(ch.Set[i].ID.Name)]; {
		case f == nil || f.used == nil:
		case len(f.used.Lists) > 0:
			s.handBound(f, &ch.Set[i])
		default:
			f.bindings, f.warned, f.before, f.apart = nil, nil, nil, false
		}
		s.noteLists(filepath.Base(ch.Set[i].ID.Name))
	}
	for name := range s.decisions.lists {
		s.noteLists(name)
	}
}

// listsChanged returns when the new lists that v refers to were changed.
func (s *Source) listsChanged(v *read.Version) (at []time.Time) {
	for name := range v.Lists {
		if f := s.files[name]; s.newLists[name] && f != nil && f.stamp != (disk.Stamp{}) {
			at = append(at, f.stamp.Changed())
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// handBound sets the services of a unit of a file that refers to lists. The caller holds s.mu.
func (s *Source) handBound(f *state, u *source.Unit) {
	w := s.boundServices(f)
	u.Services, u.Version = w.services, w.unitVersion(f.used)
	if s.store != nil && len(f.sent) > 0 {
		f.sent[len(f.sent)-1].fileWithLists = w
	}
	if f.used == f.good && (s.store == nil || f.accepted.services == nil) {
		f.accepted = w
	}
}

// boundServices returns the services that are used of a file, with their endpoints: those that were accepted, where
// the lists are not those of then and do not fit.
func (s *Source) boundServices(f *state) fileWithLists {
	known := f.bindings
	if s.fitted != s.revision.Load() {
		known = nil
	}
	w := fileWithLists{lists: map[string][sha256.Size]byte{}}
	list := func(name string) (*read.EndpointList, string) {
		v := s.listToBind(f, name)
		if v == nil {
			return s.usedList(name)
		}
		w.lists[name] = v.ID
		return v.List, read.LacksList
	}
	b := s.rules.BindVersion(f.used, list, known)
	why := b.FirstFault()
	f.apart = f.before != nil || why != "" && f.used == f.good && f.accepted.services != nil
	if f.apart && f.before == nil {
		s.log.Warn("services keep their last accepted endpoints; their lists fit only a newer version of the file", "file", f.path, "why", why)
		return f.accepted
	}
	f.bindings, f.warned = b.Known, b.Warned
	if why != "" {
		s.log.Error("some endpoints of a list are not valid for its services; using the others", "file", f.path, "why", why)
	}
	w.services = b.Services(f.used, list, s.rules.BindLoosely)
	f.before = nil
	return w
}

// usedList returns the list of a name that is used.
func (s *Source) usedList(name string) (*read.EndpointList, string) {
	if f := s.files[name]; f != nil {
		return listOf(f, f.used)
	}
	return nil, read.LacksList
}

// noteLists notes with which lists a file was accepted, where the lists in use now are not those it was
// accepted with. The caller holds s.mu.
func (s *Source) noteLists(name string) {
	f := s.files[name]
	if f == nil || f.good == nil || f.used == f.good && !f.apart || !s.listsMoved(f) {
		s.decisions.noteLists(name, nil)
		return
	}
	s.decisions.noteLists(name, &acceptedLists{f.good.ID, f.accepted.lists})
}

// listsMoved reports whether a file was accepted with lists that are not in use any more.
func (s *Source) listsMoved(f *state) bool {
	for name, id := range f.accepted.lists {
		if l := s.files[name]; l == nil || l.good == nil || l.good.ID != id {
			return true
		}
	}
	return false
}

// takeAcceptedLists has what was accepted of a file before this start go with the lists of then, where these
// have been replaced. The caller holds s.mu.
func (s *Source) takeAcceptedLists(p *probe) {
	a := s.decisions.lists[p.name]
	if a == nil || p.good == nil || a.of != p.good.ID {
		return
	}
	p.f.before = map[string]*read.Version{}
	for name, id := range a.lists {
		data, err := s.store.Text(name, id)
		if err != nil {
			s.log.Warn("lost the endpoint list that a service file was last accepted with", "file", p.f.path, "err", err)
			continue
		}
		if v := read.ListVersion(s.path(name), data, s.rules); v.List != nil {
			p.f.before[name] = v
		}
	}
}

// listToBind returns the version of a list that is to go with what is used of a file; nil: there is none.
func (s *Source) listToBind(f *state, name string) *read.Version {
	if v := f.before[name]; v != nil {
		return v
	}
	if l := s.files[name]; l != nil {
		return l.used
	}
	return nil
}
