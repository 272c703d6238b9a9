package proxier

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Flow is a UDP flow that connection tracking knows.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated

	Unreplied bool // none has come yet
}

// waits reports whether an answer may be under way, from an endpoint.
func (f *Flow) waits() bool { return f.Unreplied && f.Reply != f.Dst }

// A FlowQuery says which flows to look at: those that a client sent to one of
// To, or that were sent from one of From. If both are empty, all.
type FlowQuery struct {
	From, To []netip.AddrPort
}

// Flows is the part of connection tracking that a Loop needs.
type Flows interface {
	// Prune looks at every UDP flow of a family that q is about and removes, by its
	// full tuple, each for which stale returns true. It returns how many it removed,
	// also with an error. A flow that no longer exists is no error.
	Prune(ctx context.Context, fam Family, q FlowQuery, stale func(Flow) bool) (int, error)
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

// A flowWorker removes from connection tracking the UDP flows of one family that
// changes made stale: the kernel would send a flow where it went before, for as
// long as it lasts. A table of many flows takes time to look through, so this is
// a goroutine of its own, Run, which nobody waits for. All methods may be called
// on nil, which does nothing.
//
// It looks for the flows of what changed. At all flows it looks when it cannot
// know what changed: at first, for another Host, and when it is told to.
type flowWorker struct {
	fam    Family
	flows  Flows
	log    *slog.Logger
	looked func(fam Family, removed int, took time.Duration) // may be nil
	epoch  time.Time                                         // looks wait for multiples of time since then
	wake   chan struct{}                                     // room for one

	mu    sync.Mutex // never held while Flows works
	table flowTable
	looks []*look // to be done; at most one at any time

	// Of Run alone.
	rested time.Time     // no look before
	retry  time.Duration // wait after the last error
}

// newFlowWorker returns nil where there are no flows to look at.
func newFlowWorker(fam Family, flows Flows, log *slog.Logger, looked func(Family, int, time.Duration)) *flowWorker {
	if flows == nil {
		return nil
	}
	return &flowWorker{
		fam: fam, flows: flows, log: log, looked: looked,
		epoch: time.Now(), wake: make(chan struct{}, 1), table: newFlowTable(),
	}
}

// synced takes what a successful Sync changed since the one before. Of each change
// only New is used. all: the kernel may have held something else meanwhile, so all
// flows are looked at. It does not block.
func (w *flowWorker) synced(changes map[source.Key]ServiceChange, host Host, node *Node, all bool) {
	if w == nil {
		return
	}
	w.mu.Lock()
	l := w.table.update(changes, host, node)
	l.all = (l.all || all) && len(w.table.frontends) > 0
	if l.all || len(l.places) > 0 {
		w.add(l)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // it is awake already
	}
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
	if w == nil {
		return
	}
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
		if wait, any := w.next(); any {
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
func (w *flowWorker) next() (wait time.Duration, any bool) {
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
	n, err := w.flows.Prune(ctx, w.fam, w.query(l), func(f Flow) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.table.stale(l, f)
	})
	took := time.Since(start)
	if w.looked != nil {
		w.looked(w.fam, n, took)
	}
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
	w.log.Warn("looking for stale UDP flows failed", "family", w.fam, "err", err, "retry", w.retry)
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
	at     time.Duration // when, since the worker's epoch; 0: at once
	done   int           // how many times it was done already
	all    bool          // flows of all frontends
	places map[netip.AddrPort]place
}

// A place is an address and port of a frontend, present or former.
type place struct {
	appeared bool             // a frontend has come here, or refused flows until now
	former   []netip.AddrPort // endpoints that a frontend had: where it is gone, only flows to these were ours
}

// merge adds what o looks for.
func (l *look) merge(o *look) {
	l.all = l.all || o.all
	l.done = min(l.done, o.done)
	for at, p := range o.places {
		l.note(at, p)
	}
}

// noteGone notes the flows of a frontend that was removed from some addresses.
func (l *look) noteGone(f *Frontend, addrs []netip.Addr) {
	for _, a := range addrs {
		l.note(netip.AddrPortFrom(a, f.Key.Port), place{former: f.endpoints()})
	}
}

func (l *look) note(at netip.AddrPort, p place) {
	if l.places == nil {
		l.places = make(map[netip.AddrPort]place)
	}
	had := l.places[at]
	p.appeared = p.appeared || had.appeared
	for _, a := range had.former {
		if !slices.Contains(p.former, a) {
			p.former = append(slices.Clip(p.former), a)
		}
	}
	l.places[at] = p
}

// about reports whether l is about flows to or from a place.
func (l *look) about(at netip.AddrPort) bool {
	_, named := l.places[at]
	return l.all || named
}
