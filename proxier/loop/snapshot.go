package loop

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Snapshot returns what the Loop holds. It may be called from any goroutine, also during
// a sync, and blocks one only while it copies references.
func (l *Loop) Snapshot() *report.Snapshot {
	l.mu.RLock()
	c := &l.catalog
	s := &report.Snapshot{Snapshot: c.tracker.Snapshot(), Waiting: c.unread, Drained: l.families.drained.Load(), Seen: l.backlog.seen, Surroundings: l.cfg.Surroundings}
	for i := range s.Services {
		s.Services[i].Conditions = c.conditions[s.Services[i].Key]
	}
	for i := range l.backlog.batches {
		s.Pending.Add(l.backlog.batches[i].counts)
	}
	s.Node, s.Unannounced = c.node, c.tracker.RefusedAnnouncers()
	l.mu.RUnlock()
	s.Syncs = l.Syncs()
	for _, now := range s.Syncs {
		s.Families, s.Resolved = append(s.Families, now.Family), append(s.Resolved, now.Resolved...)
	}
	return s
}

// Syncs returns what a Snapshot has of the families, for those who ask often.
func (l *Loop) Syncs() (list []report.Family) {
	for _, f := range l.families.all() {
		now := f.snapshot()
		now.Backend = f.wanted.Load().backend
		list = append(list, now)
	}
	return list
}

// Refusals returns the units that are not used as they stand, without the work of a Snapshot.
func (l *Loop) Refusals() []claims.Refusal {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.catalog.tracker.Refusals()
}

// snapshot returns what f holds.
func (f *family) snapshot() report.Family {
	stalls := f.latest().stalls(stallSteps[0])
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := &f.news
	s := report.Family{
		Family: f.fam, Host: f.desired.next.Host, Resolved: f.desired.resolved(),
		Known: n.holdsAny(), Unfinished: make(map[source.Key]report.Unfinished),
		Announced: f.ledger.Announced(), LastSync: n.good, FailingSince: n.since, Took: n.took, Err: n.err, Unserved: n.unserved, Stalls: stalls,
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
	for _, f := range l.families.all() {
		n += f.latest().lastInState
	}
	return n
}

// Counts is CountsOf now. It may be called from any goroutine, and goes through all
// endpoints if something has changed since it was last called. The maps are not to be changed.
func (l *Loop) Counts() report.Counts {
	l.counted.Lock()
	defer l.counted.Unlock()
	if rev := l.revision.Load(); l.counted.counts.Services == nil || rev != l.counted.revision {
		l.counted.counts, l.counted.revision = report.CountsOf(l.Snapshot(), int(l.named.Load()), l.counted.counts.Named), rev
	}
	return l.counted.counts
}

// SetNamed changes how many services Counts names: at first none.
func (l *Loop) SetNamed(services int) {
	if l.named.Swap(int64(services)) != int64(services) {
		l.revision.Add(1)
	}
}

// Stalls returns the work that makes no progress now. It may be called from any goroutine.
func (l *Loop) Stalls() (list []report.Stall) {
	for _, f := range l.families.all() {
		list = append(list, f.latest().stalls(stallSteps[0])...)
	}
	return list
}

// planTime is how long a family may take to answer, its present Sync included.
const planTime = 20 * time.Second

// Plan returns what a sync of each family would change now, and changes nothing. It takes
// 20 s at most, and gives way to changes. It may be called from any goroutine.
func (l *Loop) Plan(ctx context.Context) (*report.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, planTime)
	defer cancel()
	l.mu.RLock()
	waiting, families, p := l.catalog.unread, l.families.all(), &report.Plan{Edits: merged(l.backlog.batches)}
	l.mu.RUnlock()
	if len(waiting) > 0 {
		return nil, fmt.Errorf("nothing is planned before all services have been read: waiting for %s", strings.Join(waiting, ", "))
	}
	p.Families = make([]*report.FamilyPlan, len(families))
	var wg sync.WaitGroup
	for i, f := range families {
		wg.Go(func() { p.Families[i] = f.orders.ask(ctx, f.fam) })
	}
	wg.Wait()
	return p, nil
}

// heldPoll is how often Held looks.
const heldPoll = 5 * time.Millisecond

// Held gives up a Sync that has made no progress for stallPatience, but not at once: it may go on.
const (
	stallPatience = 5 * time.Second
	stallWait     = 2 * time.Second
)

// Held waits until the kernel holds all that the Loop was told before: of one family, or, with
// 0, of all. Nothing is waited for of a family that is not in use. When ctx ends before, the
// error says what is in the way, and wraps the cause of ctx. It is a Stall where a Sync makes no
// progress. Run must be running.
func (l *Loop) Held(ctx context.Context, fam policy.Family) error {
	told := make(chan uint64, 1)
	l.inbox.put(func(m *mail) { m.replies = append(m.replies, told) })
	var number uint64
	select {
	case number = <-told:
	case <-ctx.Done():
		return fmt.Errorf("the change is on its way to the kernel: %w", context.Cause(ctx))
	}
	begun := time.Now()
	look := time.NewTicker(heldPoll)
	defer look.Stop()
	for {
		late := l.families.late(number, fam)
		if late == nil {
			return nil
		}
		if s, stalled := late.latest().working.stall(stallPatience); stalled && time.Since(begun) >= stallWait {
			return fmt.Errorf("the change is on its way to the kernel, %s: %w", late.fam, s)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			if n := late.latest(); n.err != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), n.err)
			}
			return fmt.Errorf("the change is on its way to the kernel, %s: %w", late.fam, context.Cause(ctx))
		}
	}
}
