package loop

import "time"

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
