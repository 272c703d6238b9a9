package conditions

import (
	"context"
	"time"
)

// batchTime is how long more changes are waited for after one: endpoints that fail together
// are one change of their services.
const batchTime = 50 * time.Millisecond

// Run hands on what the Checker reports and how slow starts go on, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		k.mu.Lock()
		next := k.book.next()
		k.mu.Unlock()
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case <-k.news:
		case <-timer.C:
		}
		timer.Stop()
		if !pause(ctx, batchTime) {
			return nil
		}
		k.flush()
	}
}

// pause waits, and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// flush has all services resolved again whose Conditions have changed, and logs why.
func (k *Keeper) flush() {
	for _, l := range k.tell() {
		l.log(k.cfg.Log)
	}
}

// tell tells the Loop of changes, and returns what the log is to say. When it returns, the Loop
// has all changes from before, also those that another goroutine has composed.
func (k *Keeper) tell() []line {
	k.flushing.Lock()
	defer k.flushing.Unlock()
	k.mu.Lock()
	changed, lines := k.book.recompose(k.reports.take(), time.Now())
	k.mu.Unlock()
	if len(changed) > 0 {
		k.cfg.Reconsider(changed...)
	}
	return lines
}
