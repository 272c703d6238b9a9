package loop

import (
	"slices"
	"sync"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Snapshot returns what the Loop holds. It may be called from any goroutine, also during
// a sync, and blocks one only while it copies references.
func (l *Loop) Snapshot() *report.Snapshot {
	l.mu.RLock()
	s := &report.Snapshot{Snapshot: l.tracker.Snapshot(), Waiting: l.unread(), Drained: l.drained, Seen: l.seen, Surroundings: l.cfg.Surroundings}
	for i := range s.Services {
		s.Services[i].Conditions = l.conditions[s.Services[i].Key]
	}
	for i := range l.batches {
		s.Pending.Add(l.batches[i].counts)
	}
	s.Node, s.Unannounced = l.node, l.tracker.RefusedAnnouncers()
	families, backends := l.programming()
	l.mu.RUnlock()
	s.Syncs = syncs(families, backends)
	for _, now := range s.Syncs {
		s.Families, s.Resolved = append(s.Families, now.Family), append(s.Resolved, now.Resolved...)
	}
	return s
}

// Syncs returns what a Snapshot has of the families, for those who ask often.
func (l *Loop) Syncs() []report.Family {
	l.mu.RLock()
	families, backends := l.programming()
	l.mu.RUnlock()
	return syncs(families, backends)
}

// programming returns the families, and the backend that each is to have. The caller holds l.mu.
func (l *Loop) programming() (families []*runningFamily, backends []proxier.Backend) {
	for _, f := range l.families {
		families, backends = append(families, f), append(backends, f.wanted)
	}
	return families, backends
}

func syncs(families []*runningFamily, backends []proxier.Backend) (list []report.Family) {
	for i, f := range families {
		now := f.snapshot()
		now.Backend = backends[i]
		list = append(list, now)
	}
	return list
}

// Refusals returns the units that are not used as they stand, without the work of a Snapshot.
func (l *Loop) Refusals() []claims.Refusal {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tracker.Refusals()
}

// snapshot returns what f holds.
func (f *family) snapshot() report.Family {
	stalls := f.latest().stalls(stallSteps[0])
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := &f.news
	s := report.Family{
		Family: f.fam, Host: f.desired.state.Host, Resolved: make([]*policy.Resolved, 0, len(f.desired.state.Services)),
		Announced: f.announcing.announced(), Known: n.holdsAny(), Unfinished: make(map[source.Key]report.Unfinished),
		LastSync: n.good, FailingSince: n.since, Took: n.took, Err: n.err, Unserved: n.unserved, Stalls: stalls,
	}
	for _, r := range f.desired.allResolved() {
		s.Resolved = append(s.Resolved, r)
	}
	if s.Known {
		for key := range f.desired.changes.Services {
			s.Unfinished[key] = report.Unfinished{Holds: f.desired.holding(key, s.Known)}
		}
	}
	for key := range f.desired.growing {
		s.Unfinished[key] = report.Unfinished{Holds: f.desired.holding(key, s.Known), Grows: true}
	}
	return s
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

// countsCache is what was last counted.
type countsCache struct {
	mu       sync.Mutex
	revision uint64 // as it was before
	counts   report.Counts
}

// Counts is CountsOf now. It may be called from any goroutine, and goes through all
// endpoints if something has changed since it was last called. The maps are not to be changed.
func (l *Loop) Counts() report.Counts {
	l.counted.mu.Lock()
	defer l.counted.mu.Unlock()
	if rev := l.revision.Load(); l.counted.counts.Services == nil || rev != l.counted.revision {
		l.counted.counts, l.counted.revision = report.CountsOf(l.Snapshot()), rev
	}
	return l.counted.counts
}

// Stalls returns the work that makes no progress now. It may be called from any goroutine.
func (l *Loop) Stalls() (list []report.Stall) {
	l.mu.RLock()
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		list = append(list, f.latest().stalls(stallSteps[0])...)
	}
	return list
}
