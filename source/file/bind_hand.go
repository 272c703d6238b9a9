package file

import (
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
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
			if f := s.files[name]; f.used != nil && refersTo(f.used, s.newLists) && !set[f.id()] {
				u := s.outgoing(f)
				u.Changed = s.listsChanged(f.used)
				ch.Set = append(ch.Set, u)
			}
		}
		clear(s.newLists)
	}
	for i := range ch.Set {
		switch f := s.files[filepath.Base(ch.Set[i].ID.Name)]; {
		case f == nil || f.used == nil:
		case len(f.used.lists) > 0:
			ch.Set[i].Services = s.boundServices(f)
		default:
			f.bound, f.warned = nil, nil
		}
	}
}

// listsChanged returns when the new lists that v refers to were changed.
func (s *Source) listsChanged(v *version) (at []time.Time) {
	for name := range v.lists {
		if f := s.files[name]; s.newLists[name] && f != nil && f.stamp != (stamp{}) {
			at = append(at, f.stamp.changed())
		}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at
}

// boundServices returns the services that are used of a file, with their endpoints.
func (s *Source) boundServices(f *state) []*source.Service {
	known := f.bound
	if s.fitted != s.revision.Load() {
		known = nil
	}
	b := s.rules.bindVersion(f.used, s.usedList, known)
	f.bound, f.warned = b.known, b.warned
	if why := b.firstFault(); why != "" {
		s.log.Error("services are used with those endpoints of their list only that are good for them", "file", f.path, "why", why)
	}
	return b.services(f.used, s.usedList, s.rules.bindLoosely)
}

// usedList returns the list of a name that is used.
func (s *Source) usedList(name string) (*endpointList, string) {
	if f := s.files[name]; f != nil {
		return listOf(f, f.used)
	}
	return nil, lacksList
}
