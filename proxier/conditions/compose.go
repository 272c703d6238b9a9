package conditions

import (
	"maps"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// compose sets s.known, and reports whether that has changed.
func (k *Keeper) compose(s *service, now time.Time) bool {
	known := make(policy.Conditions)
	s.step = time.Time{}
	if s.endpoints == nil {
		k.composeDrains(s, known, now)
	}
	spared := s.spared()
	for at, e := range s.endpoints {
		if c := k.condition(s, at, e, spared[at], now); c != (policy.Condition{}) {
			known[at] = c
		}
	}
	if s.regroup(known, k.started, now) {
		ring(k.unsaved)
	}
	s.settle(known, now)
	k.noteFailing(s, known, now)
	if delete(k.timed, s.key); !s.step.IsZero() {
		k.timed[s.key] = s
	}
	if maps.Equal(known, s.known) {
		return false
	}
	s.known = known
	return true
}

// composeDrains adds the conditions of endpoints to which only drains make a difference.
func (k *Keeper) composeDrains(s *service, known policy.Conditions, now time.Time) {
	if k.drains.empty() {
		return
	}
	for i := range s.Endpoints {
		at := s.EndpointAt(&s.Endpoints[i])
		if c := k.drained(s, at.Addr(), now); c.Drained {
			known[at] = c
		}
	}
}

// drained returns what a drain makes of the condition of an endpoint.
func (k *Keeper) drained(s *service, a netip.Addr, now time.Time) (c policy.Condition) {
	why := k.drains.Of(s.key, a)
	switch {
	case why == nil:
		return c
	case why.Until.IsZero():
	case why.Until.After(now):
		s.stepAt(why.Until)
	default:
		c.Overdue = true
	}
	c.Drained = true
	return c
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

// condition returns the condition of one endpoint, and notes what has become of it. Spared: it was
// in use although it did not pass its check.
func (k *Keeper) condition(s *service, at netip.AddrPort, e *endpoint, spared bool, now time.Time) policy.Condition {
	c := k.drained(s, at.Addr(), now)
	if e.asked {
		was := e.result
		if e.result = k.cfg.Checker.Result(e.question); e.result.State != was.State {
			k.teller.changed(endpointKey{s.key, at}, was, e.result, now)
			ring(k.unsaved)
		}
		c.Check = e.result.State
		if e.trusted = e.trusted && e.result.State == source.CheckUnknown; e.trusted {
			c.Check = source.CheckPassed
		}
	}
	if e.move(c, s.SlowStart, spared, now) {
		ring(k.unsaved)
	}
	tenths, next := e.share(s.SlowStart, now)
	if c.Share = tenths; tenths > 0 {
		s.stepAt(next)
	}
	return c
}

// noteFailing has the log say when no endpoint of a service passes its check, and when one does again.
func (k *Keeper) noteFailing(s *service, known policy.Conditions, now time.Time) {
	all := policy.Subject{Service: s.Service, Conditions: known}
	if failing := all.AllFail() != ""; failing != s.failing {
		s.failing = failing
		k.teller.failing(s, now)
	}
}
