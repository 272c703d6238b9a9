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

// triggersOf returns when those units of a step were changed that changed a service. As
// kube-proxy does, it leaves out what was changed before the start, and times that cannot
// be right.
func triggersOf(ch source.Changes, changed []claims.Transition, started time.Time) (at []time.Time) {
	if len(changed) == 0 {
		return nil
	}
	keys := make(map[source.Key]bool, len(changed))
	for _, tr := range changed {
		keys[tr.Key()] = true
	}
	oldest, now := times.Later(started, time.Now().Add(-maxTriggerAge)), time.Now()
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
