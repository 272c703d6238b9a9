package healthcheck

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"svcproxy.dev/svcproxy/source"
)

// Parallel is how many probes of the network are under way at most, where Config does not say.
const Parallel = 4096

// A Config is what a Checker needs.
type Config struct {
	Log *slog.Logger // nil: slog.Default

	// Report is told each change of a State, from one goroutine. It must not block.
	Report func(Question, Result)

	// Parallel is how many probes are under way at most, each with a file descriptor; 0:
	// Parallel. Of exec it is 64 or this, whichever is less.
	Parallel int

	// ExecUser is the user as which programs run; empty: that of this process, without its capabilities, and only
	// programs that nobody else can change.
	ExecUser string

	// Ask asks one question in place of the six types, for tests with endpoints of their own; nil: nothing does.
	// It returns soon after the end of its context, whose error is a timeout.
	Ask func(context.Context, Question) error
}

// A Checker asks questions and knows the answers. Its methods may be called from any
// goroutine.
type Checker struct {
	cfg Config

	lateness, faults rate.Sometimes // lines of the log

	mu       sync.Mutex
	running  bool
	entries  map[Question]*entry
	askers   askers
	schedule schedule
	net      lane
	programs lane
	reports  []*entry // whose State has changed
	tallies  tallies
	probes   sync.WaitGroup
	ctx      context.Context // of Run
}

// NewChecker returns a Checker that asks nothing before Run.
func NewChecker(cfg Config) *Checker {
	cfg.Log, cfg.Parallel = cmp.Or(cfg.Log, slog.Default()), cmp.Or(cfg.Parallel, Parallel)
	return &Checker{
		cfg:      cfg,
		lateness: rate.Sometimes{Interval: time.Minute}, faults: rate.Sometimes{Interval: time.Minute},
		entries: map[Question]*entry{}, askers: askers{make: cfg.asker, all: map[string]*shared{}},
		schedule: schedule{epoch: time.Now(), wake: make(chan struct{}, 1), first: rate.NewLimiter(atOnce, atOnce)},
		net:      newLane(cfg.Parallel), programs: newLane(min(cfg.Parallel, programs)),
	}
}

// asker returns what asks the questions of a check.
func (c *Config) asker(check *source.HealthCheck) (asker, error) {
	if c.Ask != nil {
		return c.Ask, nil
	}
	return newAsker(check, c.ExecUser)
}

// Watch has a question asked until Forget has been called as often as Watch. The check
// is the one that q is of. From is what was known of the endpoint before a restart,
// or by a question of the same meaning; its state stays until answers in a row say otherwise.
func (c *Checker) Watch(q Question, check *source.HealthCheck, from Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[q]; e != nil {
		e.users++
		return
	}
	e := &entry{q: q, check: check, asker: c.askers.share(q, check), phase: q.phase(), users: 1, place: -1, result: from.resumed(time.Now(), check)}
	c.entries[q] = e
	if c.running {
		c.schedule.begin(e, time.Now())
	}
}

// Forget undoes one Watch. The last one ends the question: an answer that is still under way is dropped.
func (c *Checker) Forget(q Question) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[q]
	if e == nil {
		return
	}
	if e.users--; e.users > 0 {
		return
	}
	delete(c.entries, q)
	c.schedule.due.remove(e)
	c.askers.unshare(e.asker)
}

// Result returns what is known by a question; the zero Result if it is not watched.
func (c *Checker) Result(q Question) Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[q]; e != nil {
		return e.result
	}
	return Result{}
}

// Answers returns the counts of all probes so far: each type with each outcome, in a fixed order.
func (c *Checker) Answers() []Answers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tallies.answers()
}
