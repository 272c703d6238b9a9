package loop

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

const (
	// maxTriggers is how many changes that wait for one sync are timed.
	maxTriggers = 1000

	// maxTriggerAge is how old a change may be for its time to mean anything: a file that
	// is put in place can have been written long before.
	maxTriggerAge = time.Hour
)

// triggers returns when those units of a step were changed that changed a service. As
// kube-proxy does, it leaves out what was changed before the start, and times that cannot
// be right.
func (l *Loop) triggers(ch source.Changes, changed []claims.Transition) (at []time.Time) {
	if len(changed) == 0 {
		return nil
	}
	keys := make(map[source.Key]bool, len(changed))
	for _, tr := range changed {
		keys[tr.Key()] = true
	}
	oldest, now := times.Later(l.started, time.Now().Add(-maxTriggerAge)), time.Now()
	for i := range ch.Set {
		u := &ch.Set[i]
		took := len(ch.Set) == 1 || slices.ContainsFunc(u.Services, func(s *source.Service) bool { return keys[s.Key] })
		if !took {
			continue
		}
		for _, t := range u.Changed {
			if t.After(oldest) && !t.After(now) && len(at) < maxTriggers {
				at = append(at, t)
			}
		}
	}
	return at
}

// noteTriggers notes the times of changes that the next Sync brings to the kernel.
func (f *family) noteTriggers(at []time.Time) {
	room := maxTriggers - len(f.triggers)
	f.triggers = append(f.triggers, at[:min(len(at), room)]...)
}

// A RepairCause says why a sync repaired what the kernel held.
type RepairCause string

// The causes, in every mode.
const (
	Foreign    RepairCause = "foreign"     // the kernel told of a change by another program
	Difference RepairCause = "difference"  // a comparison beside the syncs found one
	Unreadable RepairCause = "unreadable"  // such a comparison failed: the sync compared everything
	FailedSync RepairCause = "failed_sync" // an earlier sync failed: the sync compared everything
)

// RepairCauses returns all of them.
func RepairCauses() []RepairCause { return []RepairCause{Foreign, Difference, Unreadable, FailedSync} }

// cause notes why the next Sync repairs.
func (f *family) cause(c RepairCause) {
	if !slices.Contains(f.causes, c) {
		f.causes = append(f.causes, c)
	}
}
