package file

import "svcproxy.dev/svcproxy/source/read"

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
			s.log.Warn("endpoints that a service file was last accepted with are not known any more", "file", p.f.path, "err", err)
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
