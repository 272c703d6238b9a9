package proxier

import (
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// Unsynced returns those of families of which nothing was ever synced since the start, though addresses of
// theirs would be announced by these means if it had been. Each is a State with one frontend at such
// an address, and nothing else: the kernel may hold it from an earlier run. While this host
// is drained nothing would be announced. It may be called like Status.
func (l *Loop) Unsynced(means source.Means, families []Family) (list []*State) {
	l.mu.RLock()
	late := lists.Keep(families, func(fam Family) bool { return !l.drained && !l.everSynced(fam) })
	node := l.node
	var announced []Subject
	if len(late) > 0 {
		l.tracker.services(func(s *source.Service, _ source.UnitID) {
			if s.Announce&means != 0 {
				announced = append(announced, l.subject(s))
			}
		})
	}
	l.mu.RUnlock()
	for _, fam := range late {
		for _, s := range announced {
			if st := s.announcedAs(means, node, fam); st != nil {
				list = append(list, st)
				break
			}
		}
	}
	return list
}

// everSynced reports whether a Sync of a family has succeeded. The caller holds l.mu.
func (l *Loop) everSynced(fam Family) bool {
	i := slices.IndexFunc(l.families, func(f *runningFamily) bool { return f.fam == fam })
	return i >= 0 && !l.families[i].latest().good.IsZero()
}

// announcedAs returns a State with a frontend that is to be announced by these means; nil: there is none.
func (s Subject) announcedAs(means source.Means, node *Node, fam Family) *State {
	r := Resolve(s.Service, s.Conditions, node, fam)
	if r == nil {
		return nil
	}
	for _, n := range r.Announced {
		if n.Means != means || n.Withheld != NotWithheld {
			continue
		}
		for _, f := range r.frontendsAt(n.Addr) {
			if s.unready(node, f) == NotWithheld {
				return OnlyFor(node, fam, r, f)
			}
		}
	}
	return nil
}
