package proxier

import (
	"context"
	"time"
)

// secondLook is how long after a change flows are looked for once more, see
// staleFlows: longer than most answers are under way, and short enough for a flow
// to move within a second. After maxLooks those that always come back are left.
const (
	secondLook = 300 * time.Millisecond
	maxLooks   = 10
)

// flowLooks says which flows are looked for once more, and when.
type flowLooks struct {
	again *staleFlows // nil: none
	at    time.Time
	left  int
}

func (l *flowLooks) due() (time.Time, bool) { return l.at, l.again != nil }

// prune removes the UDP flows that a sync made stale.
func (f *family) prune(ctx context.Context, r *SyncResult) int {
	s := f.staleFlows(r.Full)
	if len(s.look) > 0 && !r.Queued.IsZero() { // something changed
		if f.flows.again == nil {
			f.flows.again = s
		} else {
			f.flows.again.merge(s)
		}
		f.flows.at, f.flows.left = time.Now().Add(secondLook), maxLooks
	}
	return f.removeFlows(ctx, s)
}

// staleFlows returns which UDP flows a Sync that just succeeded made stale.
func (f *family) staleFlows(full bool) *staleFlows {
	s := &staleFlows{node: f.node}
	for _, ch := range f.changes.services {
		s.removedBy(ch, &f.state.Host)
	}
	if full {
		s.all(f.state)
		return s
	}
	for _, ch := range f.changes.services {
		s.changedBy(ch, &f.state.Host)
	}
	return s
}

func (f *family) removeFlows(ctx context.Context, s *staleFlows) int {
	if f.cfg.Flows == nil || len(s.look) == 0 {
		return 0
	}
	n, err := f.cfg.Flows.Prune(ctx, f.fam, s.stale)
	if err != nil && ctx.Err() == nil {
		f.cfg.Log.Warn("stale UDP flows not removed", "family", f.fam, "err", err)
	}
	return n
}

// lookForFlowsAgain removes the flows that came back after they were removed.
func (f *family) lookForFlowsAgain(ctx context.Context) {
	l := &f.flows
	if l.again == nil || time.Now().Before(l.at) {
		return
	}
	l.left--
	if f.removeFlows(ctx, l.again) > 0 && l.left > 0 {
		l.at = time.Now().Add(secondLook)
	} else {
		l.again = nil
	}
}
