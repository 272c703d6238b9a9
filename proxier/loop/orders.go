package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// An order is what the Loop sends to a family: all that came since it last took one.
type order struct {
	number   uint64 // of the last one; they only grow
	queued   time.Time
	services map[source.Key]policy.Subject // without Service: it is gone
	node     *policy.Node                  // all services that it touches come with it
	backend  proxier.Backend
	open     bool        // every source has been read
	full     bool        // everything is to be compared with the kernel
	repair   bool        // the backend knows of something to repair
	look     bool        // the kernel may have been changed
	triggers []time.Time // when services were changed where they are from, see triggersOf

	minimum, lookEvery *time.Duration
}

// A planQuestion asks a family for its plan.
type planQuestion struct {
	ctx    context.Context
	answer chan *report.FamilyPlan // room for one
}

// orders are the mailbox of a family, and its end.
type orders struct {
	mailbox[order]
	asked chan planQuestion
	ended chan struct{} // closed when the family has ended
	stop  func()        // ends it, and waits
}

func newOrders() orders {
	return orders{mailbox: newMailbox[order](), asked: make(chan planQuestion), ended: make(chan struct{})}
}

// put adds o to what is not yet taken. For the same thing the later order wins.
func (b *orders) put(o order) { b.mailbox.put(func(next *order) { next.merge(o) }) }

func (o *order) merge(n order) {
	o.number = max(o.number, n.number)
	if o.queued.IsZero() || len(o.services) == 0 {
		o.queued = n.queued
	}
	if o.services == nil {
		o.services = make(map[source.Key]policy.Subject, len(n.services))
	}
	maps.Copy(o.services, n.services)
	if n.node != nil {
		o.node = n.node
	}
	if n.backend != nil {
		o.backend = n.backend
	}
	if n.minimum != nil {
		o.minimum, o.lookEvery = n.minimum, n.lookEvery
	}
	o.open, o.full = o.open || n.open, o.full || n.full
	o.triggers = addTriggers(o.triggers, n.triggers)
	o.repair, o.look = o.repair || n.repair, o.look || n.look
}

const (
	// maxTriggers is how many changes that wait for one sync are timed.
	maxTriggers = 1000

	// maxTriggerAge is how old a change may be for its time to mean anything: a file that
	// is put in place can have been written long before.
	maxTriggerAge = time.Hour
)

// addTriggers adds times to a list, as far as maxTriggers allows.
func addTriggers(list, at []time.Time) []time.Time {
	return append(list, at[:min(len(at), maxTriggers-len(list))]...)
}

// triggersOf returns when those units of a step were changed that changed a service. As
// kube-proxy does, it leaves out what was changed before the start, and times that cannot
// be right.
func triggersOf(ch source.Changes, changed []claims.Transition, started time.Time) (at []time.Time) {
	if len(changed) == 0 {
		return nil
	}
	keys := make(map[source.Key]bool, len(changed))
	for _, tr := range changed {
		keys[tr.Key()] = true
	}
	oldest, now := times.Later(started, time.Now().Add(-maxTriggerAge)), time.Now()
	for i := range ch.Set {
		u := &ch.Set[i]
		took := len(ch.Set) == 1 || slices.ContainsFunc(u.Services, func(s *source.Service) bool { return keys[s.Key] })
		if !took {
			continue
		}
		for _, t := range u.Changed {
			if t.After(oldest) && !t.After(now) && len(at) < maxTriggers {
				at = append(at, t)
			}
		}
	}
	return at
}

// planPause is how long a family that had a change to sync is left alone.
const planPause = 100 * time.Millisecond

// errInterrupted says that a change came, which does not wait for a comparison.
var errInterrupted = errors.New("services change all the time")

// ask asks the family's goroutine, again after an interruption, until ctx ends.
func (b *orders) ask(ctx context.Context, fam policy.Family) *report.FamilyPlan {
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
