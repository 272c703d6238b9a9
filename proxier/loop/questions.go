package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// planPause is how long a family that had a change to sync is left alone.
const planPause = 100 * time.Millisecond

// errInterrupted says that a change came, which does not wait for a comparison.
var errInterrupted = errors.New("services change all the time")

// questions ask a family for its plan.
type questions struct {
	asked chan planQuestion
	ended chan struct{} // closed when nobody answers any more
}

// A planQuestion is one of them.
type planQuestion struct {
	ctx    context.Context
	answer chan *report.FamilyPlan // room for one
}

func newQuestions() questions {
	return questions{asked: make(chan planQuestion), ended: make(chan struct{})}
}

// ask asks the family's goroutine, again after an interruption, until ctx ends.
func (b *questions) ask(ctx context.Context, fam policy.Family) *report.FamilyPlan {
	fail := func(errs ...any) *report.FamilyPlan {
		text := "comparing %s with the kernel" + strings.Repeat(": %w", len(errs))
		return &report.FamilyPlan{Family: fam, Err: fmt.Errorf(text, append([]any{fam}, errs...)...)}
	}
	for tries := 1; ; tries++ {
		q := planQuestion{ctx, make(chan *report.FamilyPlan, 1)}
		select {
		case b.asked <- q:
		case <-b.ended:
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
