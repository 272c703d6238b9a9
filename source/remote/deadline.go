package remote

import "time"

// A Deadline can be brought forward, and is not put off.
type Deadline struct {
	*time.Timer
	at time.Time
}

// NewDeadline ends after wait.
func NewDeadline(wait time.Duration) *Deadline {
	return &Deadline{time.NewTimer(wait), time.Now().Add(wait)}
}

// Within brings d forward, where it is later than that.
func (d *Deadline) Within(wait time.Duration) {
	if at := time.Now().Add(wait); at.Before(d.at) {
		d.at = at
		d.Reset(wait)
	}
}
