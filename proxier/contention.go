package proxier

import (
	"fmt"
	"sync"
	"time"
)

const (
	// Up to contentionRepairs within contentionWindow, changes by others are
	// repaired at once: a firewall that loads its rules anew makes a few.
	contentionRepairs = 10
	contentionWindow  = 10 * time.Second

	// After that each repair waits twice as long as the one before it.
	contentionFirstWait = 250 * time.Millisecond
	contentionMaxWait   = 30 * time.Second

	// contentionEnds is for how long nobody must have changed anything for all to
	// be forgotten. It is longer than the longest wait, in which nothing may be left to change.
	contentionEnds = 2 * contentionMaxWait

	// contentionShown is from how many changes on they are a problem to show.
	contentionShown = 5
)

// A Contention repairs what others change of ours: at once, but ever later where
// they do so again and again. Two programs that undo each other's work as fast as
// they can leave no connection whole, and no processor for anything else.
type Contention struct {
	repair func()

	mu      sync.Mutex
	recent  []time.Time // of repairs at once, the last contentionRepairs
	wait    time.Duration
	timer   *time.Timer // of a repair that waits; nil: none
	stopped bool

	changes     int // since first
	first, last time.Time
	who         string // made the last
}

// NewContention returns a Contention that calls repair, which must not block, for each repair.
func NewContention(repair func()) *Contention { return &Contention{repair: repair} }

// Changed says that somebody changed what is ours. It returns how long the repair
// waits, and whether that is worth a line in the log: no more than one tells that repairs wait.
func (c *Contention) Changed(who string) (wait time.Duration, news bool) {
	wait, news = c.changed(who)
	if news && wait == 0 {
		c.repair()
	}
	return wait, news
}

// changed is Changed without a repair at once, which is due when that is news without a wait.
func (c *Contention) changed(who string) (wait time.Duration, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.note(now, who)
	switch {
	case c.stopped || c.timer != nil:
		return c.wait, false
	case c.wait == 0 && !c.tooOften(now):
		c.recent = append(c.recent, now)
		return 0, true
	}
	news = c.wait == 0
	c.wait = min(max(contentionFirstWait, 2*c.wait), contentionMaxWait)
	c.timer = time.AfterFunc(c.wait, c.fire)
	return c.wait, news
}

// note counts a change, from the beginning where it is long since the last one.
func (c *Contention) note(now time.Time, who string) {
	if now.Sub(c.last) > contentionEnds {
		c.changes, c.first, c.wait, c.recent = 0, now, 0, nil
	}
	c.changes++
	c.last, c.who = now, who
}

// tooOften tells whether a repair now would be one too many.
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

// Stop ends it: nothing is repaired any more.
func (c *Contention) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Problem says who changes our objects again and again; empty: nobody.
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
