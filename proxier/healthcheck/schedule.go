package healthcheck

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/source"
)

// jitter is the part of an interval by which a probe begins before its point of the
// grid at most, so that what an endpoint does at intervals of its own does not
// always meet it.
const jitter = 32

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

// interval returns how far apart the question is asked, in the state that it has.
func (e *entry) interval() time.Duration {
	if e.result.State == source.CheckFailed {
		return max(e.check.IntervalDown, tick)
	}
	return max(e.check.Interval, tick)
}

// after returns the first point of the grid of interval iv after t.
func (c *Checker) after(t time.Time, e *entry, iv time.Duration) time.Time {
	phase := time.Duration(e.phase % uint64(iv))
	since := t.Sub(c.epoch) - phase
	n := since / iv
	if since < 0 {
		n = -1 // a phase may begin after t
	}
	return c.epoch.Add(phase + (n+1)*iv)
}

// begin makes a question due for the first time: at once if these are few.
func (c *Checker) begin(e *entry, now time.Time) {
	e.grid, e.due = now, now
	if e.result.State != source.CheckUnknown || !c.first.AllowN(now, 1) {
		e.grid = c.after(now, e, min(e.interval(), firstWait))
		e.due = e.grid
	}
	c.push(e)
}

// again makes a question due for the next time.
func (c *Checker) again(e *entry, now time.Time) {
	iv := e.interval()
	e.grid = c.after(times.Later(e.grid, now), e, iv)
	e.due = e.grid.Add(-rand.N(max(iv/jitter, 1)))
	c.push(e)
}

// late reports whether it is so long after the turn of a question that it waits for the
// next one: after the machine or the process had stopped, all would else be asked at once.
// No two turns in a row are left out.
func (e *entry) late(now time.Time) bool {
	e.skipped = !e.skipped && now.Sub(e.due) > max(e.interval()/4, 20*tick)
	return e.skipped
}

func (c *Checker) push(e *entry) {
	heap.Push(&c.due, e)
	if e.place == 0 {
		c.poke()
	}
}

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
