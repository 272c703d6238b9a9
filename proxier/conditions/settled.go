package conditions

import (
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// settle sets Settled of the endpoints whose check has failed for long enough that others, which
// fail for the same reason, would have too: an uplink that is lost takes them down one by one. Of
// results alone, so that a restart knows the same.
func (s *service) settle(known policy.Conditions, now time.Time) {
	if s.HealthCheck == nil || s.CloseConnections == source.CloseNever {
		return
	}
	for at, e := range s.endpoints {
		if !e.asked || e.result.State != source.CheckFailed {
			continue
		}
		due, ok := s.settled(e)
		if !ok {
			continue
		}
		if due.After(now) && !due.After(now.Add(s.settleTime())) { // else the clock was set back
			s.stepAt(due)
			continue
		}
		c := known[at]
		c.Settled = true
		known[at] = c
	}
}

// settled returns when it is settled that an endpoint fails, if it is some time. While it may come
// back with others nothing becomes so, and what failed with all others is not while all are used.
func (s *service) settled(e *endpoint) (due time.Time, ok bool) {
	due = e.result.Since.Add(healthcheck.FailTime(s.HealthCheck))
	switch {
	case !e.lost:
		return due, true
	case e.until.IsZero():
		return due, s.HealthCheck.Refuse
	case s.HealthCheck.Refuse && due.Before(e.until.Add(-healthcheck.ReturnTime(s.HealthCheck))):
		return due, true
	}
	return times.Later(due, e.until), true
}

// settleTime is the longest time that settled returns.
func (s *service) settleTime() time.Duration {
	return max(healthcheck.FailTime(s.HealthCheck), healthcheck.ReturnTime(s.HealthCheck))
}
