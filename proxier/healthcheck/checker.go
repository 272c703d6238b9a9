package healthcheck

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

	mu          sync.Mutex
	running     bool
	entries     map[Question]*entry
	expressions expressions
	schedule    schedule
	net         lane
	programs    lane
	reports     []*entry // whose State has changed
	probes      sync.WaitGroup
	ctx         context.Context          // of Run
	answers     *prometheus.HistogramVec // how long probes took, by type and outcome
}

// NewChecker returns a Checker that asks nothing before Run.
func NewChecker(cfg Config) *Checker {
	cfg.Log, cfg.Parallel = cmp.Or(cfg.Log, slog.Default()), cmp.Or(cfg.Parallel, Parallel)
	c := &Checker{
		cfg:      cfg,
		lateness: rate.Sometimes{Interval: time.Minute}, faults: rate.Sometimes{Interval: time.Minute},
		entries: map[Question]*entry{}, expressions: expressions{},
		schedule: schedule{epoch: time.Now(), wake: make(chan struct{}, 1), first: rate.NewLimiter(atOnce, atOnce)},
		net:      newLane(cfg.Parallel), programs: newLane(min(cfg.Parallel, programs)),
		answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "svcproxy", Name: "endpoint_check_duration_seconds",
			Help:    "Time of a health check of an endpoint, by its type and what came of it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15), // 1 ms to 16 s
		}, []string{"type", "outcome"}),
	}
	for _, of := range source.CheckTypes { // a rate sees the first only of a counter that was 0 before
		for _, o := range []outcome{passed, failed, timedOut, notAsked} {
			c.answers.WithLabelValues(of, string(o))
		}
	}
	return c
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
	e := &entry{q: q, check: check, expect: c.expressions.use(check), phase: q.phase(), users: 1, place: -1, result: from.resumed(time.Now(), check)}
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
	c.expressions.drop(e.check)
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

// Answers are the metrics of all probes so far: each type with each outcome.
func (c *Checker) Answers() prometheus.Collector { return c.answers }

// endWait is how long Run waits at its end for probes, which then end by themselves.
const endWait = time.Second

// Run asks until ctx ends, and returns when no probe is under way, or a second later: its
// error is that of ctx. It is called once.
func (c *Checker) Run(ctx context.Context) error {
	c.start(ctx)
	defer c.settle()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-c.schedule.wake:
		}
		wait := c.startDue(time.Now())
		c.report()
		timer.Reset(max(wait, tick))
	}
}

// settle waits until no probe is under way, but no longer than endWait.
func (c *Checker) settle() {
	done := make(chan struct{})
	go func() {
		c.probes.Wait()
		close(done)
	}()
	timer := time.NewTimer(endWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// start makes due what was watched before.
func (c *Checker) start(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running, c.ctx = true, ctx
	now := time.Now()
	for _, e := range c.entries {
		c.schedule.begin(e, now)
	}
}

// startDue begins the probes that are due, and returns how long none will be.
func (c *Checker) startDue(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := &c.schedule.due
	for len(*due) > 0 && !(*due)[0].due.After(now) {
		e := heap.Pop(due).(*entry)
		if e.late(now) {
			c.schedule.again(e, now)
			continue
		}
		lane := c.lane(e)
		lane.put(e)
		c.fill(lane)
	}
	if len(*due) == 0 {
		return time.Hour
	}
	return (*due)[0].due.Sub(now)
}

func (c *Checker) lane(e *entry) *lane {
	if e.check.Type == source.CheckExec {
		return &c.programs
	}
	return &c.net
}

// fill begins the probe whose turn it is, if there is a slot. The caller holds c.mu.
func (c *Checker) fill(l *lane) {
	if e := l.next(); e != nil {
		c.probes.Go(func() { c.work(l, e) })
	}
}

// work probes, and goes on with those that wait until there is none, or no slot.
func (c *Checker) work(l *lane, e *entry) {
	for e != nil && c.ctx.Err() == nil {
		slow := e.slow
		began := time.Now()
		err := c.probe(e)
		c.complain(e, began, err)
		e = c.answered(l, e, slow, err, began, time.Since(began))
	}
}

// complain logs, once a minute, what is wrong with this host rather than with an endpoint.
func (c *Checker) complain(e *entry, began time.Time, err error) {
	if waited := began.Sub(e.due); waited > e.check.Interval {
		c.lateness.Do(func() {
			c.cfg.Log.Warn("health checks are late; too many are running", "waited", waited, "type", e.check.Type, "parallel", c.lane(e).slots)
		})
	}
	if outcomeOf(err) == notAsked {
		c.faults.Do(func() { c.cfg.Log.Warn("a health check could not run", "endpoint", e.q.At, "err", words(err)) })
	}
}

// probe asks once, bounded by the check's timeout.
func (c *Checker) probe(e *entry) error {
	ctx, cancel := context.WithTimeout(c.ctx, e.check.Timeout)
	defer cancel()
	if c.cfg.Ask != nil {
		return c.cfg.Ask(ctx, e.q)
	}
	return ask(ctx, e.q, e.check, e.expect, c.cfg.ExecUser)
}

// answered takes an answer, and returns the question whose turn it is in the slot that is free now.
func (c *Checker) answered(l *lane, e *entry, slow bool, err error, began time.Time, took time.Duration) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.take(slow, -1)
	if c.ctx.Err() == nil && e.users > 0 {
		c.record(e, err, began, took)
		c.schedule.again(e, time.Now())
	}
	return l.next()
}

// record counts an answer, and says what it means for the endpoint.
func (c *Checker) record(e *entry, err error, began time.Time, took time.Duration) {
	o := outcomeOf(err)
	c.answers.WithLabelValues(e.check.Type.String(), string(o)).Observe(took.Seconds())
	e.slow = took >= slowFrom
	if o == notAsked || o == timedOut && e.stopped(took) {
		c.missed(e, err, began, took)
		return
	}
	e.uncounted = false
	was := e.result.State
	e.result = e.result.with(err, began, took, e.check)
	if e.result.State != was && !e.reporting {
		e.reporting = true
		c.reports = append(c.reports, e)
		c.schedule.poke()
	}
}

// missed is of a probe that says nothing of the endpoint: it takes the place of no answer.
func (c *Checker) missed(e *entry, err error, began time.Time, took time.Duration) {
	if outcomeOf(err) == notAsked {
		e.result.NotAsked = words(err)
	}
	if e.result.Asked.IsZero() {
		e.result.Asked = began
	}
	if e.result.State == source.CheckUnknown {
		e.result.Asked, e.result.Took, e.result.Error = began, took, words(err)
	}
}

// report tells the changes of states, outside of the lock.
func (c *Checker) report() {
	for _, r := range c.changes() {
		c.cfg.Report(r.q, r.result)
	}
}

// changes returns what has another state now, as it is, of questions that are still watched.
func (c *Checker) changes() []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []entry
	for _, e := range c.reports {
		e.reporting = false
		if e.users > 0 {
			all = append(all, *e)
		}
	}
	c.reports = c.reports[:0]
	return all
}

// An outcome is what came of a probe.
type outcome string

const (
	passed   outcome = "passed"
	failed   outcome = "failed"
	timedOut outcome = "timeout"
	notAsked outcome = "not_asked" // because of this host itself
)

// outcomeOf returns what came of a probe.
func outcomeOf(err error) outcome {
	var own *ownError
	switch {
	case err == nil:
		return passed
	case errors.As(err, &own):
		return notAsked
	case isTimeout(err):
		return timedOut
	}
	return failed
}
