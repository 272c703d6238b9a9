package proxier

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
)

// A Flow is a flow or connection that connection tracking knows.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated

	Unreplied bool // none has come yet
	Ended     bool // it is over, and its client needs not be told
}

// waits reports whether an answer may be under way, from an endpoint.
func (f *Flow) waits() bool { return f.Unreplied && f.Reply != f.Dst }

// A FlowQuery says which flows of a protocol to look at: those that a client sent to one of
// To, or that were sent from one of From; if both are empty, all. Of these only those whose
// replies come from one of At, unless that is empty.
type FlowQuery struct {
	Protocol     source.Protocol
	From, To, At []netip.AddrPort
}

// Flows is the part of connection tracking that a Loop needs.
type Flows interface {
	// Prune looks at every flow of a family that q is about and removes, by its
	// full tuple, each for which stale returns true. It returns how many it removed,
	// also with an error. A flow that no longer exists is no error.
	Prune(ctx context.Context, fam Family, q FlowQuery, stale func(Flow) bool) (int, error)

	// Challenge has the clients of TCP connections that were removed send a packet. It
	// returns the first error.
	Challenge(fam Family, removed []Flow) error
}

// A flow to a former endpoint can come back after it was removed: an answer in
// flight looks like a new flow from the frontend to the client, and the client's
// later packets pass for its answers. So flows are looked for once more
// after secondLook, longer than most answers are under way, and short enough for a
// flow to move within a second. As long as some come back, others may come back in
// the same way: looks go on, quickLooks of them in that time, then more slowly, at
// last every retryMax.
//
// A flow that has not been answered yet is left to the second look: its endpoint may
// have left and still answer.
const (
	secondLook = 300 * time.Millisecond
	quickLooks = 10
)

// maxRest is the longest pause of a flowWorker after a look. It pauses as long as it
// worked, so that endless changes cost at most half a processor.
const maxRest = 250 * time.Millisecond

// A flowWorker removes from connection tracking the flows of one family and protocol that
// changes made stale: the kernel would send a flow where it went before, for as
// long as it lasts. What is stale says a flowJudge. A table of many flows takes time to look through, so this is
// a goroutine of its own, Run, which nobody waits for.
//
// It looks for the flows of what changed. At all UDP flows it looks when it cannot
// know what changed: at first, for another Host, and when it is told to.
type flowWorker struct {
	fam    Family
	proto  source.Protocol
	flows  Flows
	log    *slog.Logger
	looked func(fam Family, removed int, took time.Duration) // may be nil
	epoch  time.Time                                         // looks wait for multiples of time since then
	wake   chan struct{}                                     // room for one

	mu    sync.Mutex // never held while Flows works
	judge flowJudge
	looks []*look // to be done; at most one at any time

	// Of Run alone.
	rested time.Time     // no look before
	retry  time.Duration // wait after the last error
}

// A flowJudge knows which flows of a protocol are stale, by what was synced.
type flowJudge interface {
	synced(*synced) *look   // what to look for after a Sync
	query(*look) FlowQuery  // what to ask connection tracking for
	stale(*look, Flow) bool // whether a flow that is looked at has to go now
	rest()                  // nothing is looked for any more
}

// synced is what a successful Sync changed since the one before, and what it led to.
type synced struct {
	changes  map[source.Key]ServiceChange
	services map[source.Key]*Resolved // all
	host     Host
	node     *Node
	all      bool // the kernel may have held something else meanwhile
}

// newFlowWorkers returns one for each protocol; none where there are no flows to look at.
func newFlowWorkers(fam Family, cfg *Config) []*flowWorker {
	if cfg.Flows == nil {
		return nil
	}
	return []*flowWorker{
		newFlowWorker(fam, source.UDP, newUDPFrontends(), cfg.Flows, cfg.Log, cfg.OnFlows),
		newFlowWorker(fam, source.TCP, newCloser(source.TCP), cfg.Flows, cfg.Log, nil),
		newFlowWorker(fam, source.SCTP, newCloser(source.SCTP), cfg.Flows, cfg.Log, nil),
	}
}

func newFlowWorker(fam Family, proto source.Protocol, judge flowJudge, flows Flows, log *slog.Logger, looked func(Family, int, time.Duration)) *flowWorker {
	return &flowWorker{
		fam: fam, proto: proto, flows: flows, log: log, looked: looked,
		epoch: time.Now(), wake: make(chan struct{}, 1), judge: judge,
	}
}

// synced takes what a successful Sync changed. It does not block.
func (w *flowWorker) synced(s *synced) {
	w.mu.Lock()
	l := w.judge.synced(s)
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

// look removes the flows that l finds stale. Each is judged by what is synced by then.
func (w *flowWorker) look(ctx context.Context, l *look) {
	start := time.Now()
	var removed []Flow // of TCP
	waiting := 0       // of n, those that were not answered yet, or have ended
	n, err := w.flows.Prune(ctx, w.fam, w.query(l), func(f Flow) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		stale := w.judge.stale(l, f)
		switch {
		case !stale:
		case f.Unreplied || f.Ended:
			waiting++
		case w.proto == source.TCP && len(removed) < maxChallenged:
			removed = append(removed, f)
		}
		return stale
	})
	w.challenge(removed)
	took := time.Since(start)
	w.tell(n, n-waiting, took)
	if ctx.Err() != nil {
		return
	}
	w.rested = time.Now().Add(min(took, maxRest))
	if err != nil {
		w.again(l, err)
		return
	}
	w.retry = 0
	if l.done++; l.done == 1 || n > 0 {
		w.later(l)
	}
	w.restIfDone()
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

func (w *flowWorker) restIfDone() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.looks) == 0 {
		w.judge.rest()
	}
}

func (w *flowWorker) query(l *look) FlowQuery {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.judge.query(l)
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

// later has the same looked for again. What falls into the same half of the time
// to wait becomes one look.
func (w *flowWorker) later(l *look) {
	wait := min(secondLook<<min(max(l.done-quickLooks, 0), 10), retryMax)
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
	appeared bool             // a frontend has come here, or refused flows until now
	former   []netip.AddrPort // endpoints that a frontend had: where it is gone, only flows to these were ours
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
func (l *look) noteGone(f *Frontend, addrs []netip.Addr) {
	for _, a := range addrs {
		l.note(netip.AddrPortFrom(a, f.Key.Port), frontendChange{former: f.endpoints()})
	}
}

func (l *look) note(at netip.AddrPort, p frontendChange) {
	if l.changed == nil {
		l.changed = make(map[netip.AddrPort]frontendChange)
	}
	had := l.changed[at]
	p.appeared = p.appeared || had.appeared
	if len(had.former) > 0 {
		p.former = sorted(slices.Concat(p.former, had.former))
	}
	l.changed[at] = p
}

// about reports whether l is about flows to or from an address and port.
func (l *look) about(at netip.AddrPort) bool {
	_, named := l.changed[at]
	return l.all || named
}
