package healthcheck

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
)

// jitter is the part of an interval by which a probe begins before its point of the
// grid at most, so that what an endpoint does at intervals of its own does not
// always meet it.
const jitter = 32

const (
	atOnce    = 100             // new questions that are asked at once, and how many more each second
	firstWait = 5 * time.Second // in which other new questions are asked, where the interval is not less
)

// An entry is a question that is watched.
type entry struct {
	q      Question
	check  *source.HealthCheck
	expect *expression
	phase  uint64
	users  int // 0: it is no longer watched
	result Result

	reporting bool      // it is in Checker.reports
	slow      bool      // its last probe held its slot for long
	skipped   bool      // its last turn was left out
	uncounted bool      // its last answer was not counted: this process had stopped
	grid      time.Time // the last point of its grid at which it was asked, or is due
	due       time.Time
	place     int // in schedule.due; -1: not there
}

// slowFrom is how long a probe takes that is slow.
const slowFrom = 250 * time.Millisecond

// FailTime returns within which time of each other endpoints fail, by a check, that fail for the same
// reason: the time of a row of bad answers. It is counted from the moment of each Result.Since.
func FailTime(check *source.HealthCheck) time.Duration {
	return rowTime(int(check.Fall), check.Interval, check.Timeout)
}

// ReturnTime returns how long after the first of them endpoints pass, by a check, that come back
// together: one turn of each, and its answer.
func ReturnTime(check *source.HealthCheck) time.Duration {
	return rowTime(1, check.IntervalDown, check.Timeout)
}

// rowTime returns how long a row of answers takes at most, wherever in the interval it begins and
// ends: a turn is early by the jitter at either end.
func rowTime(n int, interval, timeout time.Duration) time.Duration {
	return time.Duration(n)*interval + 2*interval/jitter + timeout
}

// tick is the least time between two looks at what is due, which makes fewer
// wake-ups: with 2,000 probes a second eight begin together.
const tick = 4 * time.Millisecond

// stopped reports whether a probe timed out because the machine or the process had
// stopped: it then took far longer than it may. It is not so twice in a row.
func (e *entry) stopped(took time.Duration) bool {
	e.uncounted = !e.uncounted && took > e.check.Timeout+max(e.check.Timeout/2, slowFrom)
	return e.uncounted
}

// interval returns how far apart the question is asked, in the state that it has.
func (e *entry) interval() time.Duration {
	if e.result.State == source.CheckFailed {
		return max(e.check.IntervalDown, tick)
	}
	return max(e.check.Interval, tick)
}

// A schedule says which question is due when. Checker.mu guards it.
type schedule struct {
	epoch time.Time     // where all grids begin
	wake  chan struct{} // of room for one: what is due has changed
	first *rate.Limiter // of new questions that are asked at once
	due   queue
}

// after returns the first point of the grid of interval iv after t.
func (s *schedule) after(t time.Time, e *entry, iv time.Duration) time.Time {
	phase := time.Duration(e.phase % uint64(iv))
	since := t.Sub(s.epoch) - phase
	n := since / iv
	if since < 0 {
		n = -1 // a phase may begin after t
	}
	return s.epoch.Add(phase + (n+1)*iv)
}

// begin makes a question due for the first time: at once if these are few.
func (s *schedule) begin(e *entry, now time.Time) {
	e.grid, e.due = now, now
	if e.result.State != source.CheckUnknown || !s.first.AllowN(now, 1) {
		e.grid = s.after(now, e, min(e.interval(), firstWait))
		e.due = e.grid
	}
	s.push(e)
}

// again makes a question due for the next time.
func (s *schedule) again(e *entry, now time.Time) {
	iv := e.interval()
	e.grid = s.after(times.Later(e.grid, now), e, iv)
	e.due = e.grid.Add(-rand.N(max(iv/jitter, 1)))
	s.push(e)
}

// late reports whether it is so long after the turn of a question that it waits for the
// next one: after the machine or the process had stopped, all would else be asked at once.
// No two turns in a row are left out.
func (e *entry) late(now time.Time) bool {
	e.skipped = !e.skipped && now.Sub(e.due) > max(e.interval()/4, 20*tick)
	return e.skipped
}

func (s *schedule) push(e *entry) {
	heap.Push(&s.due, e)
	if e.place == 0 {
		s.poke()
	}
}

// poke has Run look again at what is due.
func (s *schedule) poke() { wake.Once(s.wake) }

// A queue has the question that is due next in front. It is a heap.Interface.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(x any) {
	e := x.(*entry)
	e.place = len(*q)
	*q = append(*q, e)
}

func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.place = -1
	return e
}

// remove takes a question out, if it is there.
func (q *queue) remove(e *entry) {
	if e.place >= 0 {
		heap.Remove(q, e.place)
	}
}
