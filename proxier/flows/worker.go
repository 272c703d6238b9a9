package flows

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A flow to a former endpoint can come back after it was removed: a packet that the rules of
// before have balanced makes one, and where nothing was balanced an answer in
// flight looks like a new flow from the frontend to the client, whose
// later packets pass for its answers. So flows are looked for once more
// after secondLook, longer than most packets are under way, and short enough for a
// flow to move within a second. As long as some come back, others may come back in
// the same way: looks go on, quickLooks of them in that time, then more slowly, at
// last every retryMax.
//
// A half-open connection to an endpoint that may still be there has until halfOpenLooks have been made,
// one second, to be established. A UDP flow of ipvs mode, which cannot move, is left alone for graceLooks: its
// destination goes after a second, and the flow with it.
const (
	secondLook    = 300 * time.Millisecond
	quickLooks    = 10
	halfOpenLooks = 3
	graceLooks    = 4
)

// Flows to frontends that went unseen are looked for pastLooks times: what is translated there later may be another program's.
const pastLooks = 3

// An association of SCTP whose endpoint has left is looked at every awaitLook until it ends, or more rarely, so that
// this takes at most one part in awaitShare of a processor.
const (
	awaitLook  = 100 * time.Millisecond
	awaitShare = 20
)

// A Worker that has worked for longer than maxWork, less the time in which it did nothing since, pauses
// for the excess, maxRest at most. So a change is looked at without delay, as a rule, also on a busy machine where
// looks take several times as long, and endless changes cost at most half a processor.
const (
	maxWork = 2 * time.Second
	maxRest = 250 * time.Millisecond
)

// A look that failed is tried again after retryMin, and later than that as it goes on failing; no look waits for
// longer than retryMax.
const (
	retryMin = 500 * time.Millisecond
	retryMax = 30 * time.Second
)

// A Worker removes from connection tracking the flows of one family and protocol that
// changes made stale: the kernel would send a flow where it went before, for as
// long as it lasts, and a connection that a client opens from the same port as well. A table says what is
// stale. A table of many flows takes time to look through, so this is
// a goroutine of its own, Run, which nobody waits for.
//
// It looks for the flows of what changed. At all flows it looks when it cannot
// know what changed: at first, for another Host, and when it is told to.
type Worker struct {
	cfg   Config
	fam   policy.Family
	proto source.Protocol
	epoch time.Time     // looks wait for multiples of time since then
	wake  chan struct{} // room for one

	mu     sync.Mutex // never held while Tracking works
	table  *table
	record *record
	looks  []*look // to be done; at most one at any time

	// Of Run alone.
	pastLooks int           // how many were at frontends that went unseen
	rested    time.Time     // no look before
	ended     time.Time     // the last look
	worked    time.Duration // how long looks took, less the time between them
	retry     time.Duration // wait after the last error
}

// A Config configures Workers.
type Config struct {
	Tracking Tracking // nil: there are none
	RunDir   string   // where to record to which frontends flows may be tracked; empty: nowhere
	Log      *slog.Logger
	Looked   func(fam policy.Family, removed int, took time.Duration) // is called after each look for UDP flows; may be nil
}

// NewWorkers returns one for each protocol; none where there are no flows to look at.
func NewWorkers(fam policy.Family, cfg Config) (list []*Worker) {
	if cfg.Tracking == nil {
		return nil
	}
	for _, proto := range []source.Protocol{source.UDP, source.TCP, source.SCTP} {
		list = append(list, &Worker{
			cfg: cfg, fam: fam, proto: proto, epoch: time.Now(), wake: make(chan struct{}, 1),
			table: newTable(proto), record: readRecord(cfg.RunDir, fam, proto, cfg.Log),
		})
	}
	return list
}

// Expect takes what a Sync is about to change.
func (w *Worker) Expect(changes []policy.ServiceChange) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.expect(changes, w.table)
}

// Synced takes what a successful Sync changed. It does not block.
func (w *Worker) Synced(s *Sync) {
	w.mu.Lock()
	first := w.table.node == nil
	l := w.table.synced(s)
	past := w.record.synced(s.Changes, w.table)
	if first {
		past = slices.Collect(maps.Keys(w.record.past))
	}
	w.table.addPast(l, past)
	if l.all || len(l.changed) > 0 {
		w.add(l)
	}
	w.mu.Unlock()
	wake.Once(w.wake)
}

// add notes a look, for its time. The caller holds mu.
func (w *Worker) add(l *look) {
	for _, o := range w.looks {
		if o.at == l.at {
			o.merge(l)
			return
		}
	}
	w.looks = append(w.looks, l)
}

// Run works until ctx ends.
func (w *Worker) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		if l := w.due(); l != nil {
			w.runLook(ctx, l)
		}
		timer.Stop()
		if wait, ok := w.next(); ok {
			timer.Reset(wait)
		}
	}
}

// due takes all due looks, merged into one; nil: none.
func (w *Worker) due() *look {
	if time.Now().Before(w.rested) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var all *look
	now := time.Since(w.epoch)
	w.looks = slices.DeleteFunc(w.looks, func(l *look) bool {
		switch {
		case l.at > now:
			return false
		case all == nil:
			all = l
		default:
			all.merge(l)
		}
		return true
	})
	return all
}

// next returns how long to wait for the next look, if there is any.
func (w *Worker) next() (wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.looks) == 0 {
		return 0, false
	}
	first := slices.MinFunc(w.looks, func(a, b *look) int { return int(a.at - b.at) })
	return max(first.at-time.Since(w.epoch), time.Until(w.rested)), true
}

// runLook judges the flows that l is about by what is synced by then, and removes or moves those that are stale.
func (w *Worker) runLook(ctx context.Context, l *look) {
	start := time.Now()
	var closed []Flow         // connections that were established, the first of them
	var closing, awaiting int // how many of these, and of those that are awaited
	w.mu.Lock()
	query := w.table.query(l)
	w.mu.Unlock()
	n, err := w.cfg.Tracking.Prune(ctx, w.fam, query, func(f Flow) Verdict {
		w.mu.Lock()
		v := w.table.judge(l, f)
		w.mu.Unlock()
		switch {
		case v == await:
			awaiting++
			return Keep
		case v == Remove && !f.Unreplied && !f.Opening && !f.Ended:
			if closing++; len(closed) < maxChallenged {
				closed = append(closed, f)
			}
		}
		return v
	})
	if w.proto == source.TCP && len(closed) > 0 { // clients notice, also those that only wait
		if err := w.cfg.Tracking.Challenge(w.fam, closed); err != nil {
			w.cfg.Log.Warn("cannot notify clients of closed connections; they learn it with their next packet", "family", w.fam, "err", err)
		}
	}
	took := time.Since(start)
	switch {
	case w.proto != source.UDP && closing > 0:
		w.cfg.Log.Info("closed connections of endpoints that left", "family", w.fam, "protocol", w.proto, "connections", closing)
	case w.proto == source.UDP && w.cfg.Looked != nil:
		w.cfg.Looked(w.fam, n, took)
	}
	if ctx.Err() != nil {
		return
	}
	w.rest(start, took)
	if err != nil {
		w.again(l, err)
		return
	}
	w.retry = 0
	l.done++
	if l.past {
		if w.pastLooks++; w.pastLooks%pastLooks == 0 {
			l.forgetPast()
		}
	}
	switch {
	case l.done == 1 || n > 0:
		w.later(l, secondLook)
	case awaiting > 0 && w.proto != source.SCTP:
		w.later(l, secondLook)
	case awaiting > 0:
		w.later(l, max(awaitLook, awaitShare*took))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record.settled(w.table, w.looks)
}

// rest has the worker pause after a look that began at start, if looks took too long of late.
func (w *Worker) rest(start time.Time, took time.Duration) {
	w.worked = max(w.worked-start.Sub(w.ended), 0) + took
	w.ended = start.Add(took)
	if excess := w.worked - maxWork; excess > 0 {
		w.rested = w.ended.Add(min(excess, maxRest))
	}
}

// maxChallenged is how many clients one look asks where they stand, at some 5 us each. Others
// learn from their next packet that their connection is closed.
const maxChallenged = 1 << 16

// again retries a failed look after retryMin, and twice as long after each further
// failure, up to retryMax. All others wait too, as they would fail as well.
func (w *Worker) again(l *look, err error) {
	w.retry = min(max(2*w.retry, retryMin), retryMax)
	w.rested = time.Now().Add(w.retry)
	w.cfg.Log.Warn("looking for stale flows failed", "family", w.fam, "protocol", w.proto, "err", err, "retry", w.retry)
	w.mu.Lock()
	defer w.mu.Unlock()
	l.at = 0
	w.add(l)
}

// later has the same looked for again after some time, or longer as looks go on. What falls into the same half of
// the time to wait becomes one look.
func (w *Worker) later(l *look, wait time.Duration) {
	if wait == secondLook {
		wait = min(secondLook<<min(max(l.done-quickLooks, 0), 10), retryMax)
	}
	step := wait / 2
	w.mu.Lock()
	defer w.mu.Unlock()
	l.at = (time.Since(w.epoch) + wait + step - 1) / step * step
	w.add(l)
}
