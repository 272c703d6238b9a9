package loop

import (
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Unsynced returns those of families of which nothing was ever synced since the start, though addresses of
// theirs would be announced by these means if it had been. Each is a State with one frontend at such
// an address, and nothing else: the kernel may hold it from an earlier run. While this host
// is drained nothing would be announced. It may be called like Status.
func (l *Loop) Unsynced(means source.Means, families []policy.Family) (list []*policy.State) {
	l.mu.RLock()
	late := lists.Keep(families, func(fam policy.Family) bool { return !l.drained && !l.everSynced(fam) })
	node := l.node
	var announced []policy.Subject
	if len(late) > 0 {
		l.tracker.Services(func(s *source.Service, _ source.UnitID) {
			if s.Announce&means != 0 {
				announced = append(announced, l.subject(s))
			}
		})
	}
	l.mu.RUnlock()
	for _, fam := range late {
		for _, s := range announced {
			if st := s.AnnouncedAs(means, node, fam); st != nil {
				list = append(list, st)
				break
			}
		}
	}
	return list
}

// everSynced reports whether a Sync of a family has succeeded. The caller holds l.mu.
func (l *Loop) everSynced(fam policy.Family) bool {
	i := slices.IndexFunc(l.families, func(f *runningFamily) bool { return f.fam == fam })
	return i >= 0 && !l.families[i].latest().good.IsZero()
}
