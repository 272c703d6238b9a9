package loop

import (
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

func (p *pace) done(r *SyncResult) {
	p.started, p.ended, p.changed = r.Start, r.Start.Add(r.Duration), false
	if r.Err == nil {
		p.retry = 0
		return
	}
	p.retry = min(max(2*p.retry, retryMin), retryMax)
}

// reset has nothing wait for an earlier Sync.
func (p *pace) reset() { *p = pace{open: p.open, minimum: p.minimum} }

// A due says what the next Sync is for.
type due struct {
	full     bool          // it compares everything with the kernel
	dirty    bool          // there is something to sync
	broken   bool          // foreign changes were found since the last Sync that succeeded
	causes   []RepairCause // of repairs
	triggers []time.Time   // of changes not yet synced, see triggersOf
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

// noteTriggers notes the times of changes that the next Sync brings to the kernel.
func (d *due) noteTriggers(at []time.Time) {
	room := maxTriggers - len(d.triggers)
	d.triggers = append(d.triggers, at[:min(len(at), room)]...)
}
