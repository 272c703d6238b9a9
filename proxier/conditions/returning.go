package conditions

import (
	"iter"
	"net/netip"
	"slices"
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
	g := regrouping{known: known, started: started, now: now, lost: make(map[*endpoint]bool)}
	for _, e := range s.endpoints {
		e.until = time.Time{}
	}
	if s.HealthCheck != nil {
		for _, group := range (policy.Subject{Service: s.Service, Conditions: known}).Peers() {
			if p := s.tally(group.All(), known); len(p.passing) == 0 {
				g.fail(p, s.HealthCheck)
			} else if until := g.returns(p, s.HealthCheck); !until.IsZero() {
				s.stepAt(until)
			}
		}
	}
	for _, e := range s.endpoints {
		changed = changed || e.lost != g.lost[e]
		e.lost = g.lost[e]
	}
	return changed
}

// A regrouping is a run of service.regroup.
type regrouping struct {
	known        policy.Conditions
	started, now time.Time
	lost         map[*endpoint]bool // who is, after it
}

// fail is of peers that all fail. Those are lost that failed when the last one did. Others failed
// before, for a reason of their own, and so did one that has never passed where not all were asked.
func (g *regrouping) fail(p peers, check *source.HealthCheck) {
	for _, e := range p.failing {
		together := !e.result.Since.Before(p.last.Add(-healthcheck.FailTime(check)))
		if e.lost || together && (e.result.Passed || !p.checking) {
			g.lost[e.endpoint] = true
		}
	}
}

// returns is of peers of which some pass. It returns until when the others that are lost may follow;
// zero: there is none, or their time is over.
func (g *regrouping) returns(p peers, check *source.HealthCheck) time.Time {
	until := times.Later(p.first, g.started).Add(healthcheck.ReturnTime(check))
	if !p.anyLost() || !until.After(g.now) || p.first.After(g.now) { // the last: the clock was set back
		return time.Time{}
	}
	for _, e := range slices.Concat(p.passing, p.failing) {
		if e.lost {
			g.lost[e.endpoint], e.until = true, times.Later(e.until, until)
		}
		if c := g.known[e.at]; e.lost || c.Check == source.CheckPassed {
			c.Returning = true
			g.known[e.at] = c
		}
	}
	return until
}

// peers are endpoints that stand in for one another, by what their check says.
type peers struct {
	passing, failing []peer
	checking         bool      // one has no result
	first, last      time.Time // since when the first of passing passes, and the last of failing fails
}

type peer struct {
	*endpoint
	at netip.AddrPort
}

func (s *service) tally(all iter.Seq[*source.Endpoint], known policy.Conditions) (p peers) {
	for it := range all {
		at := s.EndpointAt(it)
		e := peer{s.endpoints[at], at}
		since := e.result.Since
		switch known[at].Check {
		case source.CheckUnknown:
			p.checking = true
		case source.CheckFailed:
			p.failing, p.last = append(p.failing, e), times.Later(p.last, since)
		case source.CheckPassed:
			if len(p.passing) == 0 || since.Before(p.first) {
				p.first = since
			}
			p.passing = append(p.passing, e)
		}
	}
	return p
}

// anyLost reports whether one fails that failed together with all others.
func (p *peers) anyLost() bool {
	return slices.ContainsFunc(p.failing, func(e peer) bool { return e.lost })
}
