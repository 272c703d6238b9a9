package conditions

import (
	"context"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source"
)

// batchTime is how long more changes are waited for after one: endpoints that fail together
// are one change of their services.
const batchTime = 50 * time.Millisecond

// Run hands on what the Checker reports and how slow starts go on, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		timer := time.NewTimer(time.Until(k.next()))
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

// next returns when there is something to do, if nothing is reported before.
func (k *Keeper) next() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := time.Now().Add(time.Hour)
	for _, s := range k.timed {
		next = times.Earlier(next, s.step)
	}
	return times.Due(next, k.teller.due())
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
	changed, lines := k.recompose(time.Now())
	if len(changed) > 0 {
		k.cfg.Reconsider(changed...)
	}
	return lines
}

// recompose composes the Conditions of services that something has happened to, and returns
// those whose Conditions have changed, and what the log is to say.
func (k *Keeper) recompose(now time.Time) (changed []source.Key, lines []line) {
	k.mu.Lock()
	defer k.mu.Unlock()
	touched := k.dirty
	k.dirty = make(map[source.Key]bool)
	for q := range k.reports.take() {
		for _, p := range k.askers[q] {
			touched[p.Key] = true
		}
	}
	for key, s := range k.timed {
		if !s.step.After(now) {
			touched[key] = true
		}
	}
	for key := range touched {
		if s := k.services[key]; s != nil && k.compose(s, now) {
			changed = append(changed, key)
		}
	}
	return changed, k.teller.take(now)
}
