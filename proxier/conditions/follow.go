package conditions

import (
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
)

// A Checker asks endpoints whether they are alive, as healthcheck.Checker does. Result must not
// wait for a call of Report that is under way.
type Checker interface {
	Watch(q healthcheck.Question, check *source.HealthCheck, from healthcheck.Result)
	Forget(q healthcheck.Question)
	Result(q healthcheck.Question) healthcheck.Result
}

// A book has all services in use, with what is known of their endpoints. Keeper.mu guards it.
type book struct {
	checker  Checker
	drains   *Drains
	started  time.Time     // by New
	unsaved  chan struct{} // of the Keeper
	services map[source.Key]*service
	askers   map[healthcheck.Question][]endpointKey // who asks it
	dirty    map[source.Key]bool                    // services that drains have touched
	timed    map[source.Key]*service                // those whose step is not zero
	former   formerEndpoints
	teller   teller
}

// followed reports whether more than drains makes a difference to a service.
func followed(svc *source.Service) bool {
	return svc != nil && (svc.HealthCheck != nil || svc.SlowStart > 0)
}

// follow takes a service into use as svc has it; nil: it is gone.
func (b *book) follow(s *service, svc *source.Service, now time.Time) {
	was, before := s.endpoints, s.Service
	s.Service, s.endpoints = svc, nil
	if followed(svc) {
		s.endpoints = b.meet(s, was, now)
		s.trust(before)
	}
	for at, e := range was {
		if s.endpoints[at] != e {
			b.ask(s, at, e, nil, now)
			b.former.add(endpointKey{s.key, at}, e, now)
		}
	}
	if len(was) > 0 || len(s.endpoints) > 0 {
		wake.Once(b.unsaved)
	}
}

// trust notes which endpoints are in use already, where a service without a check gets one: else
// the first to answer would have all connections.
func (s *service) trust(before *source.Service) {
	if before == nil || before.HealthCheck != nil || s.HealthCheck == nil {
		return
	}
	for i := range before.Endpoints {
		it := &before.Endpoints[i]
		if e := s.endpoints[before.EndpointAt(it)]; e != nil && eligible(before, it) {
			e.trusted = true
		}
	}
}

// meet returns the endpoints of a service: those that were, those that are back, and new ones.
// In a service that is new as a whole these are as if they had been there.
func (b *book) meet(s *service, was map[netip.AddrPort]*endpoint, now time.Time) map[netip.AddrPort]*endpoint {
	fresh := len(was) == 0 && !b.former.before[s.key]
	delete(b.former.before, s.key)
	all := make(map[netip.AddrPort]*endpoint, len(s.Endpoints))
	asks := make(map[netip.AddrPort]*source.Endpoint)
	for i := range s.Endpoints {
		it := &s.Endpoints[i]
		at := s.EndpointAt(it)
		e := all[at]
		if e == nil {
			if e = was[at]; e == nil {
				e = b.former.reclaim(endpointKey{s.key, at})
				e.usable = e.usable || fresh
			}
			e.eligible, all[at] = false, e
		}
		e.eligible = e.eligible || eligible(s.Service, it)
		if s.HealthCheck != nil && !s.Disabled && !it.Disabled {
			asks[at] = it
		}
	}
	for at, e := range all {
		b.ask(s, at, e, asks[at], now)
	}
	return all
}

// eligible reports whether the file lets an endpoint get new connections.
func eligible(svc *source.Service, e *source.Endpoint) bool {
	return !svc.Disabled && !e.Disabled && e.Weight > 0 && (e.Ready || svc.PublishNotReady)
}

// ask has the question asked that the check of a service asks of it; nil: none. A check that
// is new begins with what was known by the one before.
func (b *book) ask(s *service, at netip.AddrPort, e *endpoint, it *source.Endpoint, now time.Time) {
	p, had, before := endpointKey{s.key, at}, e.asked, e.question
	if e.asked = it != nil; e.asked {
		e.question = healthcheck.Ask(s.Service, it)
		if had && e.question == before {
			return // also a result that has changed is for compose to see
		}
	}
	if had {
		e.result, e.left = b.checker.Result(before), now
	}
	if e.asked {
		b.watch(p, e, s.HealthCheck, now)
	}
	if had {
		b.forget(p, before)
	}
}

// watch begins to ask e.question.
func (b *book) watch(p endpointKey, e *endpoint, check *source.HealthCheck, now time.Time) {
	if !e.left.IsZero() && e.expired(now) {
		e.result = healthcheck.Result{}
	}
	e.left, e.result.Row = time.Time{}, 0
	b.askers[e.question] = append(b.askers[e.question], p)
	b.checker.Watch(e.question, check, e.result)
	e.result = b.checker.Result(e.question) // another service may have asked it before
}

// forget ends asking a question for one endpoint.
func (b *book) forget(p endpointKey, q healthcheck.Question) {
	b.checker.Forget(q)
	rest := slices.DeleteFunc(b.askers[q], func(o endpointKey) bool { return o == p })
	if b.askers[q] = rest; len(rest) == 0 {
		delete(b.askers, q)
	}
}
