package proxier

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Flow is a flow or connection that connection tracking knows.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated

	Unreplied bool // none has come yet
	Opening   bool // a connection that its client has not confirmed yet
	Ended     bool // a connection that is over: its client needs not be told
	Reopening bool // a connection that ReopenFlow was said of before
	Movable   bool // MoveFlow is more than RemoveFlow
}

// A FlowQuery says which flows of a protocol to look at: those that a client sent to one of
// To, or that were sent from one of From; if both are empty, all. Of these only those whose
// replies come from one of At, unless that is empty.
type FlowQuery struct {
	Protocol     source.Protocol
	From, To, At []netip.AddrPort
}

// Flows is the part of connection tracking that a Loop needs.
type Flows interface {
	// Prune looks at every flow of a family that q is about and does with it, by its
	// full tuple, what judge says. It returns how many it removed,
	// also with an error. A flow that no longer exists is no error.
	Prune(ctx context.Context, fam policy.Family, q FlowQuery, judge func(Flow) Verdict) (int, error)

	// Challenge has the clients of TCP connections that were removed send a packet. It
	// returns the first error.
	Challenge(fam policy.Family, removed []Flow) error
}

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

// An association of SCTP whose endpoint has left is looked at every awaitLook until it ends, or more rarely, so that
// this takes at most one part in awaitShare of a processor.
const (
	awaitLook  = 100 * time.Millisecond
	awaitShare = 20
)

// A flowWorker that has worked for longer than maxWork, less the time in which it did nothing since, pauses
// for the excess, maxRest at most. So a change is looked at without delay, as a rule, also on a busy machine where
// looks take several times as long, and endless changes cost at most half a processor.
const (
	maxWork = 2 * time.Second
	maxRest = 250 * time.Millisecond
)

// A flowWorker removes from connection tracking the flows of one family and protocol that
// changes made stale: the kernel would send a flow where it went before, for as
// long as it lasts, and a connection that a client opens from the same port as well. What is stale says a
// flowTable. A table of many flows takes time to look through, so this is
// a goroutine of its own, Run, which nobody waits for.
//
// It looks for the flows of what changed. At all flows it looks when it cannot
// know what changed: at first, for another Host, and when it is told to.
type flowWorker struct {
	fam    policy.Family
	proto  source.Protocol
	flows  Flows
	log    *slog.Logger
	looked func(fam policy.Family, removed int, took time.Duration) // may be nil
	epoch  time.Time                                                // looks wait for multiples of time since then
	wake   chan struct{}                                            // room for one

	mu    sync.Mutex // never held while Flows works
	table *flowTable
	looks []*look // to be done; at most one at any time

	// Of Run alone.
	rested time.Time     // no look before
	ended  time.Time     // the last look
	worked time.Duration // how long looks took, less the time between them
	retry  time.Duration // wait after the last error
}

// synced is what a successful Sync changed since the one before, and what it led to.
type synced struct {
	changes map[source.Key]policy.ServiceChange
	host    policy.Host
	node    *policy.Node
	all     bool // the kernel may have held something else meanwhile
}

// newFlowWorkers returns one for each protocol; none where there are no flows to look at.
func newFlowWorkers(fam policy.Family, cfg *Config) []*flowWorker {
	if cfg.Flows == nil {
		return nil
	}
	return []*flowWorker{
		newFlowWorker(fam, source.UDP, cfg, cfg.OnFlows),
		newFlowWorker(fam, source.TCP, cfg, nil),
		newFlowWorker(fam, source.SCTP, cfg, nil),
	}
}

func newFlowWorker(fam policy.Family, proto source.Protocol, cfg *Config, looked func(policy.Family, int, time.Duration)) *flowWorker {
	return &flowWorker{
		fam: fam, proto: proto, flows: cfg.Flows, log: cfg.Log, looked: looked,
		epoch: time.Now(), wake: make(chan struct{}, 1), table: newFlowTable(proto),
	}
}

// synced takes what a successful Sync changed. It does not block.
func (w *flowWorker) synced(s *synced) {
	w.mu.Lock()
	l := w.table.synced(s)
	if l.all || len(l.changed) > 0 {
		w.add(l)
	}
	w.mu.Unlock()
	wake.Once(w.wake)
}

// add notes a look, for its time. The caller holds mu.
func (w *flowWorker) add(l *look) {
	for _, o := range w.looks {
		if o.at == l.at {
			o.merge(l)
			return
		}
	}
	w.looks = append(w.looks, l)
}

// Run works until ctx ends.
func (w *flowWorker) Run(ctx context.Context) {
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
			w.look(ctx, l)
		}
		timer.Stop()
		if wait, ok := w.next(); ok {
			timer.Reset(wait)
		}
	}
}

// due takes all due looks, merged into one; nil: none.
func (w *flowWorker) due() *look {
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
func (w *flowWorker) next() (wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.looks) == 0 {
		return 0, false
	}
	first := slices.MinFunc(w.looks, func(a, b *look) int { return int(a.at - b.at) })
	return max(first.at-time.Since(w.epoch), time.Until(w.rested)), true
}

// look does with the flows that l is about what is to become of them, by what is synced by then.
func (w *flowWorker) look(ctx context.Context, l *look) {
	start := time.Now()
	var seen seenFlows
	n, err := w.flows.Prune(ctx, w.fam, w.query(l), func(f Flow) Verdict {
		w.mu.Lock()
		v := w.table.judge(l, f)
		w.mu.Unlock()
		return seen.add(v, f)
	})
	if w.proto == source.TCP {
		w.challenge(seen.closed)
	}
	took := time.Since(start)
	w.tell(n, seen.closing, took)
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
	switch {
	case l.done == 1 || n > 0:
		w.later(l, secondLook)
	case seen.awaited > 0 && w.proto != source.SCTP:
		w.later(l, secondLook)
	case seen.awaited > 0:
		w.later(l, max(awaitLook, awaitShare*took))
	}
}

// rest has the worker pause after a look that began at start, if looks took too long of late.
func (w *flowWorker) rest(start time.Time, took time.Duration) {
	w.worked = max(w.worked-start.Sub(w.ended), 0) + took
	w.ended = start.Add(took)
	if excess := w.worked - maxWork; excess > 0 {
		w.rested = w.ended.Add(min(excess, maxRest))
	}
}

// seenFlows are what one look has come by.
type seenFlows struct {
	closing int    // connections that were established
	closed  []Flow // the first of those
	awaited int
}

// add notes a verdict, and returns it as Flows knows it.
func (s *seenFlows) add(v Verdict, f Flow) Verdict {
	switch {
	case v == AwaitFlow:
		s.awaited++
		return KeepFlow
	case v == RemoveFlow && !f.Unreplied && !f.Opening && !f.Ended:
		if s.closing++; len(s.closed) < maxChallenged {
			s.closed = append(s.closed, f)
		}
	}
	return v
}

// tell tells what a look has removed, and how many of those were answered.
func (w *flowWorker) tell(n, closed int, took time.Duration) {
	if w.looked != nil {
		w.looked(w.fam, n, took)
	}
	if closed > 0 && w.proto != source.UDP {
		w.log.Info("closed connections of endpoints that left", "family", w.fam, "protocol", w.proto, "connections", closed)
	}
}

// maxChallenged is how many clients one look asks where they stand, at some 5 us each. Others
// learn from their next packet that their connection is closed.
const maxChallenged = 1 << 16

// challenge has clients notice that their connections are closed, also those that only wait.
func (w *flowWorker) challenge(removed []Flow) {
	if len(removed) == 0 {
		return
	}
	if err := w.flows.Challenge(w.fam, removed); err != nil {
		w.log.Warn("telling clients that their connections are closed failed; they learn it from their next packet", "family", w.fam, "err", err)
	}
}

func (w *flowWorker) query(l *look) FlowQuery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.table.query(l)
}

// again retries a failed look after retryMin, and twice as long after each further
// failure, up to retryMax. All others wait too, as they would fail as well.
func (w *flowWorker) again(l *look, err error) {
	w.retry = min(max(2*w.retry, retryMin), retryMax)
	w.rested = time.Now().Add(w.retry)
	w.log.Warn("looking for stale flows failed", "family", w.fam, "protocol", w.proto, "err", err, "retry", w.retry)
	w.mu.Lock()
	defer w.mu.Unlock()
	l.at = 0
	w.add(l)
}

// later has the same looked for again after some time, or longer as looks go on. What falls into the same half of
// the time to wait becomes one look.
func (w *flowWorker) later(l *look, wait time.Duration) {
	if wait == secondLook {
		wait = min(secondLook<<min(max(l.done-quickLooks, 0), 10), retryMax)
	}
	step := wait / 2
	w.mu.Lock()
	defer w.mu.Unlock()
	l.at = (time.Since(w.epoch) + wait + step - 1) / step * step
	w.add(l)
}

// A look says which flows to judge.
type look struct {
	at      time.Duration // when, since the worker's epoch; 0: at once
	done    int           // how many times it was done already
	all     bool          // flows of all frontends
	changed map[netip.AddrPort]frontendChange
}

// A frontendChange is what became of the frontend at an address and port.
type frontendChange struct {
	appeared bool // a frontend has come here, or refused flows until now
	whole    bool // any flow to it may be stale

	// Endpoints, sorted: those that a frontend had, whose flows may be stale, and of these those whose
	// connections are closed, and those that may not answer any more. Where the frontend is gone, only
	// flows to these were ours.
	former, closed, dead []netip.AddrPort
}

// merge adds what o looks for.
func (l *look) merge(o *look) {
	l.all = l.all || o.all
	l.done = min(l.done, o.done)
	for at, p := range o.changed {
		l.note(at, p)
	}
}

// noteGone notes the flows of a frontend that was removed from some addresses.
func (l *look) noteGone(f *policy.Frontend, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	c := changeOf(f, nil)
	for _, a := range addrs {
		l.note(netip.AddrPortFrom(a, f.Key.Port), c)
	}
}

func (l *look) note(at netip.AddrPort, c frontendChange) {
	if l.changed == nil {
		l.changed = make(map[netip.AddrPort]frontendChange)
	}
	had := l.changed[at]
	l.changed[at] = frontendChange{
		appeared: c.appeared || had.appeared, whole: c.whole || had.whole,
		former: both(c.former, had.former), closed: both(c.closed, had.closed), dead: both(c.dead, had.dead),
	}
}

// both returns the elements of two sorted lists.
func both(a, b []netip.AddrPort) []netip.AddrPort {
	if len(a) == 0 || len(b) == 0 {
		return append(a[:len(a):len(a)], b...)
	}
	return lists.Sorted(slices.Concat(a, b))
}

// about reports whether l is about flows to or from an address and port.
func (l *look) about(at netip.AddrPort) bool {
	_, named := l.changed[at]
	return l.all || named
}
