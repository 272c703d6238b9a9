package proxier

import "svcproxy.dev/svcproxy/source"

// A Snapshot is what services there are at one moment. What it points to never changes.
type Snapshot struct {
	Node     *Node
	Families []Family // that are programmed
	Services []UnitService
	Refused  []RefusedUnit
}

// A UnitService is a service in use, and the file or object it is from.
type UnitService struct {
	*source.Service
	Unit source.UnitID
}

// A RefusedUnit is a unit that is not used as it stands.
type RefusedUnit struct {
	Refusal
	Wanted []*source.Service // as it stands
}

// Snapshot returns what the Tracker holds.
func (t *Tracker) Snapshot() Snapshot {
	var s Snapshot
	t.services(func(svc *source.Service, id source.UnitID) { s.Services = append(s.Services, UnitService{svc, id}) })
	for _, list := range []map[source.UnitID]*unit{t.refused, t.objects.lacking} {
		for _, u := range t.inOrder(list) {
			s.Refused = append(s.Refused, RefusedUnit{u.refusal(), u.wanted})
		}
	}
	return s
}

// Snapshot returns what the Loop holds. It may be called from any goroutine, also during
// a sync, and blocks one only while it copies references.
func (l *Loop) Snapshot() Snapshot {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := l.tracker.Snapshot()
	s.Node = l.node
	for _, f := range l.families {
		s.Families = append(s.Families, f.fam)
	}
	return s
}
