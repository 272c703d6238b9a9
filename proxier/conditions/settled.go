package conditions

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// settle sets Settled of the endpoints whose check has failed for long enough that others, which
// fail or pass for the same reason, would have too: an uplink that is lost takes them down one by
// one, and brings them back one by one. Of results alone, so that a restart knows the same.
func (s *service) settle(known proxier.Conditions, now time.Time) {
	if s.HealthCheck == nil || !s.closesFailed() {
		return
	}
	check := s.HealthCheck
	down := time.Duration(check.Fall)*check.Interval + check.Timeout
	back := time.Duration(check.Rise)*check.IntervalDown + check.Timeout
	first := s.firstUp()
	for at, e := range s.endpoints {
		if !e.asked || e.result.State != healthcheck.Down {
			continue
		}
		due := e.result.Since.Add(down)
		if up, any := first[at.Addr().Is4()]; any && up.Add(back).After(due) {
			due = up.Add(back)
		}
		if due.After(now) && !due.After(now.Add(max(down, back))) { // else the clock was set back
			s.stepAt(due)
			continue
		}
		c := known[at]
		c.Settled = true
		known[at] = c
	}
}

// firstUp returns since when an endpoint of IPv4, and of IPv6, has been usable without a break:
// before that all failed.
func (s *service) firstUp() map[bool]time.Time {
	first := make(map[bool]time.Time)
	for at, e := range s.endpoints {
		up, any := first[at.Addr().Is4()]
		if e.asked && e.usable && (!any || e.result.Since.Before(up)) {
			first[at.Addr().Is4()] = e.result.Since
		}
	}
	return first
}

// closesFailed reports whether flows of the service end when their endpoint fails its check.
func (s *service) closesFailed() bool {
	return s.CloseConnections != source.CloseNever || slices.ContainsFunc(s.Ports, func(p source.Port) bool { return p.Protocol == source.UDP })
}
