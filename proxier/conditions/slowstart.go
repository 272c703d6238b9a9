package conditions

import (
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// move notes whether the endpoint is usable now: a slow start begins with that, and ends
// where it is not; not where it is spared, in use already. It reports whether anything has changed
// that a restart is to know.
func (e *endpoint) move(c policy.Condition, over time.Duration, spared bool, now time.Time) bool {
	was := *e
	free := e.eligible && !c.Drained
	waits := e.asked && e.result.State == source.CheckUnknown
	e.usable = free && (!e.asked || e.result.State == source.CheckPassed)
	e.fresh = free && waits && (was.fresh || was.usable)
	switch {
	case !e.usable || over == 0:
		e.began = time.Time{}
	case !was.usable && !was.fresh && !spared:
		e.began = now
	}
	return was.out() != e.out() || !was.began.Equal(e.began)
}

// out reports whether a slow start begins when the endpoint becomes usable.
func (e *endpoint) out() bool { return !e.usable && !e.fresh }

// share returns the tenths of its weight that the endpoint has now, and when it has more;
// 0 and never: all of it. The first tenth it has at once, and all when nine tenths of the
// time have passed.
func (e *endpoint) share(over time.Duration, now time.Time) (tenths uint8, next time.Time) {
	step := over / policy.SlowStartSteps
	if e.began.IsZero() || step <= 0 {
		return 0, time.Time{}
	}
	e.began = times.Earlier(e.began, now) // the clock may have been set back
	n := 1 + now.Sub(e.began)/step
	if n >= policy.SlowStartSteps {
		e.began = time.Time{}
		return 0, time.Time{}
	}
	return uint8(n), e.began.Add(n * step)
}
