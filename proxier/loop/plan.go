package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
)

const (
	// planTime is how long a family may take to answer, its present Sync included.
	planTime = 20 * time.Second

	// planPause is how long a family that had a change to sync is left alone.
	planPause = 100 * time.Millisecond
)

// errInterrupted says that a change came, which does not wait for a comparison.
var errInterrupted = errors.New("services change all the time")

// Plan returns what a sync of each family would change now, and changes nothing. It takes
// 20 s at most, and gives way to changes. It may be called from any goroutine.
func (l *Loop) Plan(ctx context.Context) (*report.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, planTime)
	defer cancel()
	l.mu.RLock()
	waiting, families, p := l.unread(), slices.Clone(l.families), &report.Plan{Edits: merged(l.batches)}
	l.mu.RUnlock()
	if len(waiting) > 0 {
		return nil, fmt.Errorf("nothing is planned before all services have been read: waiting for %s", strings.Join(waiting, ", "))
	}
	p.Families = make([]*report.FamilyPlan, len(families))
	var wg sync.WaitGroup
	for i, f := range families {
		wg.Go(func() { p.Families[i] = f.ask(ctx) })
	}
	wg.Wait()
	return p, nil
}

// A planQuestion asks a family for its plan.
type planQuestion struct {
	ctx    context.Context
	answer chan *report.FamilyPlan // room for one
}

// ask asks the family's goroutine, again after an interruption, until ctx ends.
func (f *family) ask(ctx context.Context) *report.FamilyPlan {
	fail := func(errs ...any) *report.FamilyPlan {
		text := "comparing %s with the kernel" + strings.Repeat(": %w", len(errs))
		return &report.FamilyPlan{Family: f.fam, Err: fmt.Errorf(text, append([]any{f.fam}, errs...)...)}
	}
	for tries := 1; ; tries++ {
		q := planQuestion{ctx, make(chan *report.FamilyPlan, 1)}
		select {
		case f.questions <- q:
		case <-f.ended:
			return fail(errors.New("it is no longer programmed"))
		case <-ctx.Done():
			if tries > 2 {
				return fail(ctx.Err(), errInterrupted)
			}
			return fail(ctx.Err(), errors.New("a sync takes long"))
		}
		p := <-q.answer
		switch {
		case p.Err == nil:
			return p
		case ctx.Err() != nil && tries > 1:
			return fail(ctx.Err(), errInterrupted)
		case ctx.Err() != nil:
			return fail(ctx.Err())
		case !errors.Is(p.Err, errInterrupted):
			return fail(p.Err)
		}
		select {
		case <-time.After(planPause):
		case <-ctx.Done():
		}
	}
}

// answer answers with the plan of the State as it is. An order ends it.
func (f *family) answer(ctx context.Context, q planQuestion) {
	st := f.desired.wantedState()
	p := &report.FamilyPlan{
		Family: f.fam, Services: f.desired.unsynced(st),
		Before: f.desired.former(), After: maps.Clone(st.Services), Host: st.Host, Node: f.desired.node,
		Fresh: f.news.good.IsZero(),
	}
	defer func() { q.answer <- p }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.ctx, cancel)()
	ctx, stop := f.watch(ctx, planWork, &f.news.working)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Objects, p.Err = f.backend.Plan(ctx, st)
	}()
	select {
	case <-done:
	case <-f.orders.wake: // what it is about is taken after this
		cancel()
		if <-done; p.Err != nil {
			p.Err = errInterrupted
		}
	}
}
