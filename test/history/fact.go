package history

import (
	"slices"
	"sync"
	"time"
)

// reaction is how long svcproxy may take to a change on a machine that has nothing else to do.
const reaction = time.Second

// A Span is a time during which something was the case. Without an end it still is.
type Span struct{ From, Until time.Time }

// overlaps reports whether any moment of a span is between two others.
func (s Span) overlaps(begin, end time.Time) bool {
	return !s.From.After(end) && (s.Until.IsZero() || !s.Until.Before(begin))
}

// A Clock knows when svcproxy could not react: while it was frozen or did not run, or the machine stood still;
// and how busy the machine was.
type Clock struct {
	mu     sync.Mutex
	spans  []Span
	stalls []Span // those of spans in which the machine stood still
	loads  []load
}

// A load is how many times as long as on an idle machine everything took.
type load struct {
	at time.Time
	is float64
}

// Load notes how busy the machine is now.
func (c *Clock) Load(is float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads = append(c.loads, load{time.Now(), is})
}

// mostLoad is how busy the machine may be for a judgement to mean something: what the nemesis does lasts a second or
// two, so a reaction that may take longer excuses everything.
const mostLoad = 3

// TooBusy reports whether the machine was too busy between two moments.
func (c *Clock) TooBusy(begin, end time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mostLoad(begin, end) > mostLoad
}

// mostLoad returns how busy the machine was between two moments.
func (c *Clock) mostLoad(begin, end time.Time) float64 {
	most := 1.0
	i, _ := slices.BinarySearchFunc(c.loads, begin, func(l load, t time.Time) int { return l.at.Compare(t) })
	for _, l := range c.loads[max(0, i-1):] { // the sample before counts until the next
		if l.at.After(end) {
			break
		}
		most = max(most, l.is)
	}
	return most
}

// scale returns how long something takes that takes d on an idle machine, at a time.
func (c *Clock) scale(d time.Duration, at time.Time) time.Duration {
	return time.Duration(float64(d) * min(mostLoad, c.mostLoad(at, at.Add(2*reaction))))
}

// Disturb notes that svcproxy cannot react from now on, until end is called.
func (c *Clock) Disturb() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.spans)
	c.spans = append(c.spans, Span{From: time.Now()})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.spans[i].Until = time.Now()
	}
}

// Lost notes a span in which the machine stood still.
func (c *Clock) Lost(s Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, s)
	c.stalls = append(c.stalls, s)
}

// StoodStill reports whether the machine did at some moment between two.
func (c *Clock) StoodStill(begin, end time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.stalls, func(s Span) bool { return s.overlaps(begin, end) })
}

// Settled returns when svcproxy must have reacted to a change that was complete at t: after d in which
// nothing kept it from that. It is in the far future while something does.
func (c *Clock) Settled(t time.Time, d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	d = c.scale(d, t)
	spans := slices.Clone(c.spans)
	slices.SortFunc(spans, func(a, b Span) int { return a.From.Compare(b.From) })
	due := t.Add(d)
	for _, s := range spans {
		switch {
		case s.From.After(due):
			return due
		case s.Until.IsZero():
			return due.Add(1000 * time.Hour)
		case s.Until.After(t): // the whole time counts again: what it has begun may be lost
			due = later(due, s.Until.Add(d))
		}
	}
	return due
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A Fact is the values that something has had, in order. Its first counts from the beginning.
type Fact[T any] struct {
	mu     sync.Mutex
	values []value[T]
}

type value[T any] struct {
	is         T
	from, done time.Time     // when the change to it began, and when it was complete
	takes      time.Duration // until it must count, after that
}

// NewFact returns a fact with its first value.
func NewFact[T any](first T) *Fact[T] { return &Fact[T]{values: []value[T]{{is: first}}} }

// Now returns the last value.
func (f *Fact[T]) Now() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.values[len(f.values)-1].is
}

// Change gives the fact another value by do, which takes its time. Where do fails it is not known which of the two counts.
func (f *Fact[T]) Change(to T, takes time.Duration, do func() error) error {
	f.mu.Lock()
	i := len(f.values)
	f.values = append(f.values, value[T]{is: to, from: time.Now(), done: time.Now().Add(1000 * time.Hour), takes: takes})
	f.mu.Unlock()
	err := do()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.values[i].done = time.Now()
	}
	return err
}

// period is one value of a fact, and when it may count.
type period[T any] struct {
	is T
	Span
	settled time.Time // when svcproxy must have reacted to the change to it
}

// periods returns the values in order. One may count as soon as the change to it began, and until svcproxy
// must have reacted to a later one.
func (f *Fact[T]) periods(c *Clock) []period[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]period[T], len(f.values))
	var until time.Time // of the value before the one at hand
	for i := len(f.values) - 1; i >= 0; i-- {
		v := f.values[i]
		due := c.Settled(v.done, reaction+v.takes)
		list[i] = period[T]{v.is, Span{v.from, until}, due}
		if until.IsZero() || due.Before(until) {
			until = due
		}
	}
	return list
}

// between returns those of some periods that have a moment between two.
func between[T any](list []period[T], begin, end time.Time) (out []T) {
	for _, p := range list {
		if p.overlaps(begin, end) {
			out = append(out, p.is)
		}
	}
	return out
}
