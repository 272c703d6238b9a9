package file

import "time"

// An alarm says when the next step is.
type alarm struct {
	timer *time.Timer
	at    time.Time
	last  time.Time // the end of the last step
}

// newAlarm returns one that goes off now.
func newAlarm() *alarm { return &alarm{timer: time.NewTimer(0), at: time.Now()} }

// rings is to be called after a step, with the time to the next.
func (a *alarm) rings(wait time.Duration) {
	a.last = time.Now()
	a.at = a.last.Add(wait)
	a.timer.Reset(wait)
}

// within makes the next step come no later than after wait.
func (a *alarm) within(wait time.Duration) {
	if at := time.Now().Add(wait); at.Before(a.at) {
		a.at = at
		a.timer.Reset(wait)
	}
}

// soon makes the next step come at once, or after merge when the last one has
// just been: of many files that are renamed one after the other, not each
// is to be a step of its own.
func (a *alarm) soon() { a.within(max(0, merge-time.Since(a.last))) }
