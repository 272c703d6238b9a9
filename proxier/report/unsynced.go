package report

import (
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Unsynced returns those of families of which nothing was ever synced since the start, though addresses of
// theirs would be announced by these means if it had been. Each is a State with one frontend at such
// an address, and nothing else: the kernel may hold it from an earlier run. While this host
// is drained nothing would be announced.
func Unsynced(s *Snapshot, means source.Means, families []policy.Family) (list []*policy.State) {
	if s.Drained {
		return nil
	}
	synced := make(map[policy.Family]bool)
	for _, f := range s.Syncs {
		synced[f.Family] = !f.LastSync.IsZero()
	}
	for _, fam := range families {
		if synced[fam] {
			continue
		}
		if st := announcedAs(s, means, fam); st != nil {
			list = append(list, st)
		}
	}
	return list
}

// announcedAs returns a State with one frontend that would be announced; nil: none would.
func announcedAs(s *Snapshot, means source.Means, fam policy.Family) *policy.State {
	for _, svc := range s.Services {
		if svc.Announce&means == 0 {
			continue
		}
		if st := svc.AnnouncedAs(means, s.Node, fam); st != nil {
			return st
		}
	}
	return nil
}
