package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// heldPoll is how often Held looks.
const heldPoll = 5 * time.Millisecond

// Held gives up a Sync that has made no progress for stallPatience, but not at once: it may go on.
const (
	stallPatience = 5 * time.Second
	stallWait     = 2 * time.Second
)

// Held waits until the kernel holds all that the Loop was told before: of one family, or, with
// 0, of all. Nothing is waited for of a family that is not in use. When ctx ends before, the
// error says what is in the way, and wraps the cause of ctx. It is a Stall where a Sync makes no
// progress. Run must be running.
func (l *Loop) Held(ctx context.Context, fam policy.Family) error {
	told := make(chan uint64, 1)
	l.inbox.put(func(m *mail) { m.told = append(m.told, told) })
	var number uint64
	select {
	case number = <-told:
	case <-ctx.Done():
		return fmt.Errorf("the change is on its way to the kernel: %w", context.Cause(ctx))
	}
	begun := time.Now()
	look := time.NewTicker(heldPoll)
	defer look.Stop()
	for {
		late := l.late(number, fam)
		if late == nil {
			return nil
		}
		if s, stalled := late.latest().syncStall(stallPatience); stalled && time.Since(begun) >= stallWait {
			return fmt.Errorf("the change is on its way to the kernel, %s: %w", late.fam, s)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			if n := late.latest(); n.err != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), n.err)
			}
			return fmt.Errorf("the change is on its way to the kernel, %s: %w", late.fam, context.Cause(ctx))
		}
	}
}

// late returns a family that does not hold an order; nil: there is none. With 0, any counts.
func (l *Loop) late(number uint64, fam policy.Family) *family {
	l.mu.RLock()
	families := slices.Clone(l.families)
	l.mu.RUnlock()
	for _, f := range families {
		if (fam == 0 || f.fam == fam) && f.latest().held < number {
			return f.family
		}
	}
	return nil
}
