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
