package loop

import (
	"cmp"
	"context"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// What a Stall may be of.
const (
	syncWork = "sync"
	planWork = "plan" // syncs wait until it has ended
	lookWork = "comparison with the kernel"
)

// unnamedWait is what work waits for that does not name it.
const unnamedWait = "the kernel"

// stall returns what p waits for, if its present part has taken at least so long.
func (p *progress) stall(fam policy.Family, least time.Duration) (s report.Stall, stalled bool) {
	part := p.since()
	if time.Since(part) < least {
		return s, false
	}
	w := p.waits.Latest()
	return report.Stall{Family: fam, Work: p.work, For: cmp.Or(w.For, unnamedWait), Detail: w.Detail, Since: times.Later(part, w.Since)}, true
}

// stalls returns the work of f whose present part has taken at least so long.
func (f *family) stalls(least time.Duration) (list []report.Stall) {
	n := f.latest()
	for _, p := range []*progress{n.working, n.looking} {
		if p == nil {
			continue
		}
		if s, stalled := p.stall(f.fam, least); stalled {
			list = append(list, s)
		}
	}
	return list
}

// syncStall returns why no Sync of f can end now; false: its present part has not yet taken so long.
func (f *family) syncStall(least time.Duration) (s report.Stall, stalled bool) {
	if p := f.latest().working; p != nil {
		return p.stall(f.fam, least)
	}
	return s, false
}

// watch returns a context for work of f, and shows at one of its news whether that makes progress until stop is called.
func (f *family) watch(ctx context.Context, work string, at **progress) (_ context.Context, stop func()) {
	ctx, p, end := watchProgress(ctx, work, f.cfg.SyncTimeout, f.stalled)
	show := func(p *progress) {
		f.mu.Lock()
		defer f.mu.Unlock()
		*at = p
	}
	show(p)
	return ctx, func() { show(nil); end() }
}

// stalled logs that work makes no progress, and has the Loop decide how long it waits for it.
func (f *family) stalled(p *progress, step int) {
	if s, stalled := p.stall(f.fam, 0); stalled && step == 0 {
		f.cfg.Log.Warn("no progress: waiting", "family", f.fam, "work", s.Work, "for", s.For, "detail", s.Detail, "since", s.Since)
	}
	f.report()
}

// Stalls returns the work that makes no progress now. It may be called from any goroutine.
func (l *Loop) Stalls() (list []report.Stall) {
	l.mu.RLock()
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		list = append(list, f.stalls(stallSteps[0])...)
	}
	return list
}
