package loop

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/awaited"
	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/report"
)

// errStuck is the cause when a Sync or a Look was given up.
var errStuck = errors.New("no progress for too long")

// What a Stall may be of.
const (
	syncWork = "sync"
	planWork = "plan" // syncs wait until it has ended
	lookWork = "comparison with the kernel"
)

// unnamedWait is what work waits for that does not name it.
const unnamedWait = "the kernel"

// A progress watches over one piece of work of a family.
type progress struct {
	*family
	work  string // as in Stall
	waits *awaited.Record

	mu     sync.Mutex
	marked time.Time   // when the present part began
	timer  *time.Timer // ends the work
	steps  *time.Timer // calls reportStep
	step   int         // of stallSteps, the next
	ended  bool
}

// After the first step a part that has not ended is reported, after the last one nobody waits for its family:
// all of 10,000 services take some 10 s with iptables-nft.
var stallSteps = []time.Duration{2 * time.Second, 15 * time.Second}

// withProgress returns a context for work of f of which each part may take as long as a Sync may. It ends, with the
// cause errStuck, when a part takes longer. One of the news of f shows whether it makes progress, until stop is called.
func (f *family) withProgress(ctx context.Context, work string, at **progress) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &progress{family: f, work: work, marked: time.Now()}
	ctx, p.waits = awaited.Watch(ctx)
	p.mu.Lock() // reportStep uses what is set here
	p.timer = time.AfterFunc(f.cfg.SyncTimeout, func() { cancel(errStuck) })
	p.steps = time.AfterFunc(stallSteps[0], p.reportStep)
	p.mu.Unlock()
	show := func(p *progress) {
		f.mu.Lock()
		defer f.mu.Unlock()
		*at = p
	}
	show(p)
	return proxier.WithProgress(ctx, p.mark), func() {
		show(nil)
		p.end()
		cancel(context.Canceled)
	}
}

func (p *progress) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.marked, p.step = time.Now(), 0
	p.timer.Reset(p.cfg.SyncTimeout)
	p.steps.Reset(stallSteps[0])
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.timer.Stop()
	p.steps.Stop()
}

// reportStep is called each time that a part has taken one of stallSteps: the first it logs, and each has the Loop
// decide how long it waits for the family.
func (p *progress) reportStep() {
	p.mu.Lock()
	step, ended := p.step, p.ended
	if p.step++; p.step < len(stallSteps) && !ended {
		p.steps.Reset(time.Until(p.marked.Add(stallSteps[p.step])))
	}
	p.mu.Unlock()
	if ended {
		return
	}
	if s, stalled := p.stall(0); stalled && step == 0 {
		p.cfg.Log.Warn("no progress; waiting", "family", p.fam, "work", s.Work, "for", s.For, "detail", s.Detail, "since", s.Since)
	}
	p.inbox.ring()
}

// alive returns now, or when the part that is overdue should have ended; p may be nil: no work.
func (p *progress) alive() time.Time {
	if p == nil {
		return time.Now()
	}
	return times.Earlier(time.Now(), p.since().Add(p.cfg.SyncTimeout))
}

// since returns when the present part began.
func (p *progress) since() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.marked
}

// stall returns what p waits for, if its present part has taken at least so long; p may be nil: no work.
func (p *progress) stall(least time.Duration) (s report.Stall, stalled bool) {
	if p == nil {
		return s, false
	}
	part := p.since()
	if time.Since(part) < least {
		return s, false
	}
	w := p.waits.Latest()
	return report.Stall{Family: p.fam, Work: p.work, For: cmp.Or(w.For, unnamedWait), Detail: w.Detail, Since: times.Later(part, w.Since)}, true
}
