package conditions

import (
	"cmp"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// use takes a service into use as svc has it; nil: it is gone.
func (b *book) use(key source.Key, svc *source.Service, now time.Time) policy.Conditions {
	s := b.services[key]
	if s == nil {
		s = &service{key: key}
	}
	b.services[key] = s
	b.follow(s, svc, now)
	if svc == nil {
		delete(b.services, key)
		delete(b.timed, key)
		return nil
	}
	b.compose(s, now)
	return s.known
}

// compose sets s.known, and reports whether that has changed.
func (b *book) compose(s *service, now time.Time) bool {
	known := make(policy.Conditions)
	s.step = time.Time{}
	if s.endpoints == nil {
		b.composeDrains(s, known, now)
	}
	spared := s.spared()
	for at, e := range s.endpoints {
		if c := b.condition(s, at, e, spared[at], now); c != (policy.Condition{}) {
			known[at] = c
		}
	}
	if s.regroup(known, b.started, now) {
		wake.Once(b.unsaved)
	}
	s.settle(known, now)
	b.reportFailing(s, known, now)
	if delete(b.timed, s.key); !s.step.IsZero() {
		b.timed[s.key] = s
	}
	if maps.Equal(known, s.known) {
		return false
	}
	s.known = known
	return true
}

// composeDrains adds the conditions of endpoints to which only drains make a difference.
func (b *book) composeDrains(s *service, known policy.Conditions, now time.Time) {
	if b.drains.empty() {
		return
	}
	for i := range s.Endpoints {
		at := s.EndpointAt(&s.Endpoints[i])
		if c := b.drained(s, at.Addr(), now); c.Drained {
			known[at] = c
		}
	}
}

// drained returns what a drain makes of the condition of an endpoint.
func (b *book) drained(s *service, a netip.Addr, now time.Time) (c policy.Condition) {
	why := b.drains.Of(s.key, a)
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

// condition returns the condition of one endpoint, and notes what has become of it. Spared: it was
// in use although it did not pass its check.
func (b *book) condition(s *service, at netip.AddrPort, e *endpoint, spared bool, now time.Time) policy.Condition {
	c := b.drained(s, at.Addr(), now)
	if e.asked {
		was := e.result
		if e.result = b.checker.Result(e.question); e.result.State != was.State {
			b.teller.changed(endpointKey{s.key, at}, was, e.result, now)
			wake.Once(b.unsaved)
		}
		c.Check = e.result.State
		if e.trusted = e.trusted && e.result.State == source.CheckUnknown; e.trusted {
			c.Check = source.CheckPassed
		}
	}
	if e.move(c, s.SlowStart, spared, now) {
		wake.Once(b.unsaved)
	}
	tenths, next := e.share(s.SlowStart, now)
	if c.Share = tenths; tenths > 0 {
		s.stepAt(next)
	}
	return c
}

// reportFailing has the log say when no endpoint of a service passes its check, and when one does again.
func (b *book) reportFailing(s *service, known policy.Conditions, now time.Time) {
	all := policy.Subject{Service: s.Service, Conditions: known}
	if failing := all.AllFail() != ""; failing != s.failing {
		s.failing = failing
		b.teller.failing(s, now)
	}
}

// detail returns what else is known of an endpoint.
func (b *book) detail(s *service, at netip.AddrPort) (d policy.Detail) {
	d.Drain = b.drains.Of(s.key, at.Addr())
	e := s.endpoints[at]
	if e == nil {
		return d
	}
	if e.asked {
		r := b.checker.Result(e.question)
		d.Since, d.Asked, d.Took, d.Error = r.Since, r.Asked, r.Took, cmp.Or(r.NotAsked, r.Error)
	}
	if s.known[at].Share > 0 {
		d.Since = e.began
	}
	return d
}

// recompose composes the Conditions of services that something has happened to, and returns
// those whose Conditions have changed, and what the log is to say.
func (b *book) recompose(reported map[healthcheck.Question]bool, now time.Time) (changed []source.Key, lines []func(*slog.Logger)) {
	touched := b.dirty
	b.dirty = make(map[source.Key]bool)
	for q := range reported {
		for _, p := range b.askers[q] {
			touched[p.Key] = true
		}
	}
	for key, s := range b.timed {
		if !s.step.After(now) {
			touched[key] = true
		}
	}
	for key := range touched {
		if s := b.services[key]; s != nil && b.compose(s, now) {
			changed = append(changed, key)
		}
	}
	return changed, b.teller.takeLines(now)
}

// next returns when there is something to do, if nothing is reported before.
func (b *book) next() time.Time {
	next := time.Now().Add(time.Hour)
	for _, s := range b.timed {
		next = times.Earlier(next, s.step)
	}
	return times.Due(next, b.teller.due())
}
