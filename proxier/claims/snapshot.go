package claims

import (
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Snapshot is what services there are at one moment. What it points to never changes.
type Snapshot struct {
	Node     *policy.Node
	Families []policy.Family // that are programmed
	Services []UnitService
	Resolved []*policy.Resolved // of each family, as far as the families have got; of a Tracker: none, see Resolve
	Refused  []Refusal
}

// A UnitService is a service in use, and the file or object it is from.
type UnitService struct {
	policy.Subject
	Unit source.UnitID
}

// Snapshot returns what the Tracker holds. It knows neither node nor families nor conditions.
func (t *Tracker) Snapshot() Snapshot {
	n := 0
	for _, u := range t.units {
		n += len(u.used)
	}
	s := Snapshot{Services: make([]UnitService, 0, n), Refused: t.Refusals()}
	t.Services(func(svc *source.Service, id source.UnitID) {
		s.Services = append(s.Services, UnitService{policy.Subject{Service: svc}, id})
	})
	return s
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
