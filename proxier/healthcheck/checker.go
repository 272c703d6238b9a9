package healthcheck

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
)

// Bounds of how much is done at once.
const (
	Parallel  = 4096            // probes of the network under way, where Config does not say
	programs  = 64              // programs that run
	atOnce    = 100             // new questions that are asked at once, and how many more each second
	firstWait = 5 * time.Second // in which other new questions are asked, where the interval is not less
)

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
	cfg   Config
	epoch time.Time                                // where all grids begin
	make  func(*source.HealthCheck) (asker, error) // newAsker, except in tests
	wake  chan struct{}                            // of room for one: what is due has changed
	first *rate.Limiter                            // of new questions that are asked at once

	lateness, faults rate.Sometimes // lines of the log

	mu       sync.Mutex
	running  bool
	entries  map[Question]*entry
	askers   map[string]*shared // by canonical text
	due      queue
	net      lane
	programs lane
	reports  []*entry // whose State has changed
	tallies  tallies
	probes   sync.WaitGroup
	ctx      context.Context // of Run
}

// An entry is a question that is watched.
type entry struct {
	q      Question
	check  *source.HealthCheck
	asker  *shared
	phase  uint64
	users  int // 0: it is no longer watched
	result Result

	reporting bool      // it is in Checker.reports
	slow      bool      // its last probe held its slot for long
	skipped   bool      // its last turn was left out
	uncounted bool      // its last answer was not counted: this process had stopped
	grid      time.Time // the last point of its grid at which it was asked, or is due
	due       time.Time
	place     int // in Checker.due; -1: not there
}

// shared is the asker of all questions of one text.
type shared struct {
	ask   asker
	text  string
	users int
}

// NewChecker returns a Checker that asks nothing before Run.
func NewChecker(cfg Config) *Checker {
	cfg.Log, cfg.Parallel = cmp.Or(cfg.Log, slog.Default()), cmp.Or(cfg.Parallel, Parallel)
	return &Checker{
		cfg: cfg, epoch: time.Now(), wake: make(chan struct{}, 1),
		first:    rate.NewLimiter(atOnce, atOnce),
		lateness: rate.Sometimes{Interval: time.Minute}, faults: rate.Sometimes{Interval: time.Minute},
		entries: map[Question]*entry{}, askers: map[string]*shared{},
		net: newLane(cfg.Parallel), programs: newLane(min(cfg.Parallel, programs)),
		make: cfg.asker,
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
	e := &entry{q: q, check: check, asker: c.share(q, check), phase: q.phase(), users: 1, place: -1, result: from.resumed(time.Now(), check)}
	c.entries[q] = e
	if c.running {
		c.begin(e, time.Now())
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
	c.due.remove(e)
	c.unshare(e.asker)
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

// share returns the asker of a check, which questions of the same text have in common.
func (c *Checker) share(q Question, check *source.HealthCheck) *shared {
	text := q.check.Value()
	s := c.askers[text]
	if s == nil {
		s = &shared{text: text}
		var err error
		if s.ask, err = c.make(check); err != nil {
			s.ask = func(context.Context, Question) error { return err }
		}
		c.askers[text] = s
	}
	s.users++
	return s
}

func (c *Checker) unshare(s *shared) {
	if s.users--; s.users == 0 {
		delete(c.askers, s.text)
	}
}

// poke has Run look again at what is due.
func (c *Checker) poke() { wake.Once(c.wake) }
