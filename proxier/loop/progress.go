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
	"svcproxy.dev/svcproxy/proxier/policy"
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

// A progress watches over one piece of work.
type progress struct {
	fam     policy.Family
	work    string                      // as in Stall
	limit   time.Duration               // of each part
	stalled func(p *progress, step int) // is called each time that a part has taken one of stallSteps
	waits   *awaited.Record

	mu     sync.Mutex
	marked time.Time   // when the present part began
	timer  *time.Timer // ends the work
	steps  *time.Timer // calls stalled
	step   int         // of stallSteps, the next
	ended  bool
}

// After the first step a part that has not ended is reported, after the last one nobody waits for its family:
// all of 10,000 services take some 10 s with iptables-nft.
var stallSteps = []time.Duration{2 * time.Second, 15 * time.Second}

// watchProgress returns a context for work of which each part may take limit. It
// ends, with the cause errStuck, when a part takes longer. stop releases it.
func watchProgress(ctx context.Context, fam policy.Family, work string, limit time.Duration, stalled func(*progress, int)) (_ context.Context, p *progress, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p = &progress{fam: fam, work: work, limit: limit, stalled: stalled, marked: time.Now()}
	ctx, p.waits = awaited.Watch(ctx)
	p.mu.Lock() // takeStep uses what is set here
	p.timer = time.AfterFunc(limit, func() { cancel(errStuck) })
	p.steps = time.AfterFunc(stallSteps[0], p.reportStep)
	p.mu.Unlock()
	return proxier.WithProgress(ctx, p.mark), p, func() {
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
	p.timer.Reset(p.limit)
	p.steps.Reset(stallSteps[0])
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.timer.Stop()
	p.steps.Stop()
}

// reportStep calls stalled, and comes again at the next step.
func (p *progress) reportStep() {
	p.mu.Lock()
	step, ended := p.step, p.ended
	if p.step++; p.step < len(stallSteps) && !ended {
		p.steps.Reset(time.Until(p.marked.Add(stallSteps[p.step])))
	}
	p.mu.Unlock()
	if !ended {
		p.stalled(p, step)
	}
}

// alive returns now, or when the part that is overdue should have ended; p may be nil: no work.
func (p *progress) alive() time.Time {
	if p == nil {
		return time.Now()
	}
	return times.Earlier(time.Now(), p.since().Add(p.limit))
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
