package loop

import (
	"context"
	"slices"
	"time"
)

// After a Sync that failed the next one comes after retryMin, then after twice as
// long each time, up to retryMax. A change brings it forward, but each of them
// compares everything with the kernel: they take a tenth of the time at most.
const (
	retryMin   = 500 * time.Millisecond
	retryMax   = 30 * time.Second
	retryShare = 10
)

// A pace says when one family may sync.
type pace struct {
	open           bool          // every source has been read
	minimum        time.Duration // as Config.MinInterval
	started, ended time.Time     // the last Sync
	retry          time.Duration // after a failure; 0: none
	changed        bool          // something has changed since the last Sync began
}

// retryAt returns when to try again after a failure.
func (p *pace) retryAt() time.Time {
	wait := p.retry
	if p.changed {
		took := p.ended.Sub(p.started)
		wait = min(wait, max(retryMin, (retryShare-1)*took))
	}
	return p.ended.Add(wait)
}

func (p *pace) done(started, ended time.Time, err error) {
	p.started, p.ended, p.changed = started, ended, false
	if err == nil {
		p.retry = 0
		return
	}
	p.retry = min(max(2*p.retry, retryMin), retryMax)
}

// A due says what the next Sync is for.
type due struct {
	full           bool          // it compares everything with the kernel
	dirty          bool          // there is something to sync
	kernelDiffered bool          // the kernel held something else, since the last Sync that succeeded
	causes         []RepairCause // of repairs
	triggers       []time.Time   // of changes not yet synced, see triggersOf
}

// A RepairCause says why a sync repaired what the kernel held.
type RepairCause string

// The causes, in every mode.
const (
	Foreign    RepairCause = "foreign"     // the kernel told of a change by another program
	Difference RepairCause = "difference"  // a comparison beside the syncs found one
	Unreadable RepairCause = "unreadable"  // such a comparison failed: the sync compared everything
	FailedSync RepairCause = "failed_sync" // an earlier sync failed: the sync compared everything
)

// RepairCauses returns all of them.
func RepairCauses() []RepairCause { return []RepairCause{Foreign, Difference, Unreadable, FailedSync} }

// cause notes why the next Sync repairs.
func (d *due) cause(c RepairCause) {
	if !slices.Contains(d.causes, c) {
		d.causes = append(d.causes, c)
	}
}

// A lookout schedules the looks of a family, which compare the kernel with what was
// written while Syncs go on.
type lookout struct {
	every  time.Duration    // as Config.LookInterval
	last   time.Time        // when a look ended, or a Sync compared everything
	wanted bool             // a look is due at once
	result chan RepairCause // why to repair; empty: the kernel holds what was written
	cancel func()           // of the running look; nil: none runs
}

// stop ends the running look and waits for it, so that its backend can be closed.
func (l *lookout) stop() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	<-l.result
	l.cancel = nil
}

// at returns when the next look is due: far in the future while one runs, and
// while Syncs fail, because the next Sync compares everything.
func (l *lookout) at(n *familyNews) time.Time {
	if l.cancel != nil || n.err != nil || n.good.IsZero() {
		return time.Now().Add(time.Hour)
	}
	if l.wanted {
		return time.Time{}
	}
	return l.last.Add(l.every)
}

// start has the kernel compared in a goroutine.
func (l *lookout) start(ctx context.Context, compare func(context.Context) RepairCause) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.wanted = false
	go func() {
		l.result <- compare(ctx)
	}()
}

// ended notes the end of the look that ran.
func (l *lookout) ended() {
	l.cancel()
	l.cancel, l.last = nil, time.Now()
}
