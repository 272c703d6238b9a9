package conditions

import (
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// regroup sets Returning of the endpoints that pass again after all have failed, and of those that
// failed with them and have time to follow: else the first to pass would have all new connections,
// and the others leave the kernel and come back one by one. A restart has to know who is lost, and
// gives all of the time again, of which some has gone by while nobody was asked. It reports whether
// what a restart has to know has changed.
func (s *service) regroup(known policy.Conditions, started, now time.Time) (changed bool) {
	lost := make(map[*endpoint]bool) // after it
	for _, e := range s.endpoints {
		e.until = time.Time{}
	}
	if s.HealthCheck != nil {
		for _, group := range (policy.Subject{Service: s.Service, Conditions: known}).Peers() {
			s.regroupPeers(group, known, lost, started, now)
		}
	}
	for _, e := range s.endpoints {
		changed = changed || e.lost != lost[e]
		e.lost = lost[e]
	}
	return changed
}

// regroupPeers is regroup for endpoints that stand in for one another. Where all fail, those are lost that failed when the last
// one did. Others failed before, for a reason of their own, and so did one that has never passed where not all were
// asked. Where some pass, the others that are lost have time to follow, until that is over.
func (s *service) regroupPeers(peers policy.Peers, known policy.Conditions, lost map[*endpoint]bool, started, now time.Time) {
	var passing, checking, anyLost bool
	var first, last time.Time // since when the first that passes does so, and the last that fails
	for it := range peers.All() {
		at := s.EndpointAt(it)
		e := s.endpoints[at]
		switch since := e.result.Since; known[at].Check {
		case source.CheckUnknown:
			checking = true
		case source.CheckFailed:
			last, anyLost = times.Later(last, since), anyLost || e.lost
		case source.CheckPassed:
			if !passing || since.Before(first) {
				first = since
			}
			passing = true
		}
	}
	until := times.Later(first, started).Add(healthcheck.ReturnTime(s.HealthCheck))
	if passing && (!anyLost || !until.After(now) || first.After(now)) { // the last: the clock was set back
		return
	}
	for it := range peers.All() {
		at := s.EndpointAt(it)
		e, c := s.endpoints[at], known[at]
		switch {
		case c.Check == source.CheckUnknown:
		case !passing:
			together := !e.result.Since.Before(last.Add(-healthcheck.FailTime(s.HealthCheck)))
			if e.lost || together && (e.result.Passed || !checking) {
				lost[e] = true
			}
		case e.lost || c.Check == source.CheckPassed:
			if c.Returning = true; e.lost {
				lost[e], e.until = true, times.Later(e.until, until)
			}
			known[at] = c
		}
	}
	if passing {
		s.stepAt(until)
	}
}
