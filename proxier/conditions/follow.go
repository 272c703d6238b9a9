package conditions

import (
	"net/netip"
	"slices"
	"time"

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

// followed reports whether more than drains makes a difference to a service.
func followed(svc *source.Service) bool {
	return svc != nil && (svc.HealthCheck != nil || svc.SlowStart > 0)
}

// follow takes a service into use as svc has it; nil: it is gone.
func (k *Keeper) follow(s *service, svc *source.Service, now time.Time) {
	was, before := s.endpoints, s.Service
	s.Service, s.endpoints = svc, nil
	if followed(svc) {
		s.endpoints = k.meet(s, was, now)
		s.trust(before)
	}
	for at, e := range was {
		if s.endpoints[at] != e {
			k.ask(s, at, e, nil, now)
			k.former.add(endpointKey{s.key, at}, e, now)
		}
	}
	if len(was) > 0 || len(s.endpoints) > 0 {
		ring(k.unsaved)
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
func (k *Keeper) meet(s *service, was map[netip.AddrPort]*endpoint, now time.Time) map[netip.AddrPort]*endpoint {
	fresh := len(was) == 0 && !k.former.knew(s.key)
	all := make(map[netip.AddrPort]*endpoint, len(s.Endpoints))
	asks := make(map[netip.AddrPort]*source.Endpoint)
	for i := range s.Endpoints {
		it := &s.Endpoints[i]
		at := s.EndpointAt(it)
		e := all[at]
		if e == nil {
			if e = was[at]; e == nil {
				e = k.former.take(endpointKey{s.key, at})
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
		k.ask(s, at, e, asks[at], now)
	}
	return all
}

// eligible reports whether the file lets an endpoint get new connections.
func eligible(svc *source.Service, e *source.Endpoint) bool {
	return !svc.Disabled && !e.Disabled && e.Weight > 0 && (e.Ready || svc.PublishNotReady)
}

// ask has the question asked that the check of a service asks of it; nil: none. A check that
// is new begins with what was known by the one before.
func (k *Keeper) ask(s *service, at netip.AddrPort, e *endpoint, it *source.Endpoint, now time.Time) {
	p, had, before := endpointKey{s.key, at}, e.asked, e.question
	if e.asked = it != nil; e.asked {
		e.question = healthcheck.Ask(s.Service, it)
		if had && e.question == before {
			return // also a result that has changed is for compose to see
		}
	}
	if had {
		e.result, e.left = k.cfg.Checker.Result(before), now
	}
	if e.asked {
		k.watch(p, e, s.HealthCheck, now)
	}
	if had {
		k.forget(p, before)
	}
}

// watch begins to ask e.question.
func (k *Keeper) watch(p endpointKey, e *endpoint, check *source.HealthCheck, now time.Time) {
	if !e.left.IsZero() && e.expired(now) {
		e.result = healthcheck.Result{}
	}
	e.left, e.result.Row = time.Time{}, 0
	k.askers[e.question] = append(k.askers[e.question], p)
	k.cfg.Checker.Watch(e.question, check, e.result)
	e.result = k.cfg.Checker.Result(e.question) // another service may have asked it before
}

// forget ends asking a question for one endpoint.
func (k *Keeper) forget(p endpointKey, q healthcheck.Question) {
	k.cfg.Checker.Forget(q)
	rest := slices.DeleteFunc(k.askers[q], func(o endpointKey) bool { return o == p })
	if k.askers[q] = rest; len(rest) == 0 {
		delete(k.askers, q)
	}
}
