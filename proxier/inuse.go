package proxier

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// InUse is what services there are at one moment, and what they are resolved to. What
// it points to never changes.
type InUse struct {
	Services []*source.Service
	Resolved []*Resolved // of each family
	Node     *Node
	Families []Family
}

// InUse returns what the Loop holds. It may be called from any goroutine, also during a
// sync, and blocks one only while it copies references.
func (l *Loop) InUse() InUse {
	l.mu.RLock()
	u := InUse{Services: l.tracker.InUse(), Node: l.node}
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		u.Families = append(u.Families, f.fam)
		f.addTo(&u)
	}
	return u
}

// Revision returns a number that every change of InUse changes, within one run.
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
func (f *family) addTo(u *InUse) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, r := range f.state.Services {
		u.Resolved = append(u.Resolved, r)
	}
}

// Resolve returns u with its services resolved for its node and families, for those who have no Loop.
func (u InUse) Resolve() InUse {
	u.Resolved = nil
	for _, s := range u.Services {
		for _, fam := range u.Families {
			if r := Resolve(s, u.Node, fam); r != nil {
				u.Resolved = append(u.Resolved, r)
			}
		}
	}
	return u
}

// InUse returns the services of all units, as they are used.
func (t *Tracker) InUse() (list []*source.Service) {
	t.services(func(s *source.Service, _ source.UnitID) { list = append(list, s) })
	return list
}
