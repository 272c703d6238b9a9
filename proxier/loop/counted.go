package loop

import (
	"svcproxy.dev/svcproxy/proxier/report"
	"sync"
)

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
