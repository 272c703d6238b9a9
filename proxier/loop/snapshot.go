package loop

import (
	"slices"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

// Snapshot returns what the Loop holds. It may be called from any goroutine, also during
// a sync, and blocks one only while it copies references.
func (l *Loop) Snapshot() claims.Snapshot {
	l.mu.RLock()
	s := l.tracker.Snapshot()
	for i := range s.Services {
		s.Services[i].Conditions = l.conditions[s.Services[i].Key]
	}
	s.Node = l.node
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		s.Families = append(s.Families, f.fam)
		f.addTo(&s)
	}
	return s
}

// Labels returns the labels of the services in use that have any. It may be called from any goroutine;
// nothing in it is to be changed.
func (l *Loop) Labels() map[source.Key]map[string]string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	labels := make(map[source.Key]map[string]string)
	l.tracker.Services(func(s *source.Service, _ source.UnitID) {
		if len(s.Labels) > 0 {
			labels[s.Key] = s.Labels
		}
	})
	return labels
}

// Revision returns a number that every change of Services, Resolved, Node and Families
// changes, within one run.
func (l *Loop) Revision() (n uint64) {
	l.mu.RLock()
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		n += f.latest().told
	}
	return n
}

// addTo adds what f has resolved.
func (f *family) addTo(s *claims.Snapshot) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	s.Resolved = slices.Grow(s.Resolved, len(f.state.Services))
	for _, r := range f.allResolved() {
		s.Resolved = append(s.Resolved, r)
	}
}
