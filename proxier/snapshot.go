package proxier

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Snapshot is what services there are at one moment. What it points to never changes.
type Snapshot struct {
	Node     *policy.Node
	Families []policy.Family // that are programmed
	Services []UnitService
	Resolved []*policy.Resolved // of each family, as far as the families have got; of a Tracker: none, see Resolve
	Refused  []RefusedUnit
}

// A UnitService is a service in use, and the file or object it is from.
type UnitService struct {
	policy.Subject
	Unit source.UnitID
}

// A RefusedUnit is a unit that is not used as it stands.
type RefusedUnit struct {
	Refusal
	Wanted []*source.Service // as it stands
}

// Snapshot returns what the Tracker holds. It knows neither node nor families nor conditions.
func (t *Tracker) Snapshot() Snapshot {
	n := 0
	for _, u := range t.units {
		n += len(u.used)
	}
	s := Snapshot{Services: make([]UnitService, 0, n)}
	t.services(func(svc *source.Service, id source.UnitID) {
		s.Services = append(s.Services, UnitService{policy.Subject{Service: svc}, id})
	})
	for _, list := range []map[source.UnitID]*unit{t.refused, t.objects.lacking} {
		for _, u := range slices.SortedFunc(maps.Values(list), (*unit).compare) {
			s.Refused = append(s.Refused, RefusedUnit{u.refusal(), u.wanted})
		}
	}
	return s
}

// Snapshot returns what the Loop holds. It may be called from any goroutine, also during
// a sync, and blocks one only while it copies references.
func (l *Loop) Snapshot() Snapshot {
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
	l.tracker.services(func(s *source.Service, _ source.UnitID) {
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
func (f *family) addTo(s *Snapshot) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	s.Resolved = slices.Grow(s.Resolved, len(f.state.Services))
	for _, r := range f.allResolved() {
		s.Resolved = append(s.Resolved, r)
	}
}

// Resolve returns s with its services resolved for its node and families, for those who have no Loop.
func (s Snapshot) Resolve() Snapshot {
	s.Resolved = nil
	for _, svc := range s.Services {
		for _, fam := range s.Families {
			if r := policy.Resolve(svc.Service, svc.Conditions, s.Node, fam); r != nil {
				s.Resolved = append(s.Resolved, r)
			}
		}
	}
	return s
}
