package proxier

import (
	"fmt"
	"sync"
	"time"
)

const (
	// Up to contentionRepairs within contentionWindow, foreign changes are repaired
	// at once: a firewall that reloads its rules makes a few.
	contentionRepairs = 10
	contentionWindow  = 10 * time.Second

	// After that each repair waits twice as long as the one before it.
	contentionFirstWait = 250 * time.Millisecond
	contentionMaxWait   = 30 * time.Second

	// contentionEnds is after how long without a foreign change the contention is over.
	// It is longer than the longest wait, during which nothing may be left to change.
	contentionEnds = 2 * contentionMaxWait

	// contentionShown is from how many changes on the contention is a problem to report.
	contentionShown = 5
)

// A Contention paces the repair of our objects after foreign changes: at once, but
// ever later if they go on. Two programs that undo each other's work as fast as they
// can would break every connection and use up a processor.
type Contention struct {
	repair func()

	mu      sync.Mutex
	recent  []time.Time // of repairs at once, the last contentionRepairs
	wait    time.Duration
	timer   *time.Timer // of a repair that waits; nil: none
	stopped bool

	changes     int // since first
	first, last time.Time
	who         string // made the last change
}

// NewContention returns a Contention that calls repair, which must not block, for each repair.
func NewContention(repair func()) *Contention { return &Contention{repair: repair} }

// Changed notes a foreign change of our objects. It returns how long the repair
// waits, and whether to log it: that repairs wait is logged once.
func (c *Contention) Changed(who string) (wait time.Duration, news bool) {
	c.mu.Lock()
	now := time.Now()
	c.count(now, who)
	switch {
	case c.stopped || c.timer != nil:
		wait = c.wait
	case c.wait == 0 && !c.tooOften(now):
		c.recent, news = append(c.recent, now), true
	default:
		news = c.wait == 0
		c.wait = min(max(contentionFirstWait, 2*c.wait), contentionMaxWait)
		c.timer, wait = time.AfterFunc(c.wait, c.fire), c.wait
	}
	c.mu.Unlock()
	if news && wait == 0 {
		c.repair()
	}
	return wait, news
}

// count counts a change, starting over if the last one is long ago.
func (c *Contention) count(now time.Time, who string) {
	if now.Sub(c.last) > contentionEnds {
		c.changes, c.first, c.wait, c.recent = 0, now, 0, nil
	}
	c.changes++
	c.last, c.who = now, who
}

// tooOften reports whether a repair now would be one too many.
func (c *Contention) tooOften(now time.Time) bool {
	if len(c.recent) < contentionRepairs {
		return false
	}
	c.recent = c.recent[len(c.recent)-contentionRepairs:]
	return now.Sub(c.recent[0]) < contentionWindow
}

func (c *Contention) fire() {
	c.mu.Lock()
	c.timer = nil
	stopped := c.stopped
	c.mu.Unlock()
	if !stopped {
		c.repair()
	}
}

// Stop stops it: nothing is repaired after that.
func (c *Contention) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Problem says who keeps changing our objects; empty: no one.
func (c *Contention) Problem() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes < contentionShown || time.Since(c.last) > contentionEnds {
		return ""
	}
	text := fmt.Sprintf("%s changes what svcproxy has in the kernel: %d times since %s", c.who, c.changes, c.first.Format(time.RFC3339))
	if c.wait > 0 {
		text += fmt.Sprintf("; repairs wait up to %v, and services fail until then: end one of the two", c.wait)
	}
	return text
}
