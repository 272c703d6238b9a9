package conditions

import (
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A service is one in use.
type service struct {
	key source.Key
	*source.Service
	endpoints map[netip.AddrPort]*endpoint // nil: only drains make a difference to it
	known     policy.Conditions            // as last composed
	step      time.Time                    // when a share grows next, or a drain is overdue; zero: never
	failing   bool                         // the check of all endpoints that could be used fails
}

// An endpoint is what is known of one, between the Conditions that are composed of it.
type endpoint struct {
	eligible bool // its file lets it get new connections
	asked    bool
	question healthcheck.Question // where asked
	result   healthcheck.Result   // as last seen
	left     time.Time            // since when it is not asked

	lost  bool      // it failed together with all that could stand in for it, and they have not come back yet
	until time.Time // when it is lost, and some of those pass again: how long it has time to follow

	trusted bool // it was in use before it had a check, and is until its first result

	usable bool      // it was when last looked at: eligible, not drained, its check passed
	fresh  bool      // it waits for its first result: no slow start begins with that
	began  time.Time // of its slow start; zero: it is in none
}

// An endpointKey says which endpoint: in which service, at which address.
type endpointKey struct {
	source.Key
	at netip.AddrPort
}

// stepAt has the service composed again at a time, if it would not be before.
func (s *service) stepAt(t time.Time) {
	s.step = times.Due(s.step, t)
}

// spared returns the endpoints that were in use although they did not pass their check; nil where
// that makes no difference: a slow start is for what was out of use.
func (s *service) spared() map[netip.AddrPort]bool {
	if s.SlowStart == 0 || s.HealthCheck == nil {
		return nil
	}
	return policy.Subject{Service: s.Service, Conditions: s.known}.Spared()
}

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
