package proxier

import (
	"net/netip"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Conditions are what is known of the endpoints of a service beside where it is written, by
// source.Service.EndpointAt: what checks have found, drains, slow starts. They are never
// changed once made; nil: nothing is known.
type Conditions map[netip.AddrPort]Condition

// A Condition is that of one endpoint. The zero Condition: nothing is known.
type Condition struct {
	Check   source.CheckResult // of a service that has a health check; zero: no result yet
	Settled bool               // it failed for so long that its connections may be closed for that
	Drained bool               // it is to get no new connections
	Overdue bool               // it is drained, and the time that its connections had is over, see Drain.Until
	Share   uint8              // tenths of its weight, 1 to 9, in a slow start; 0: all of it

	// Returning: all that could stand in for it have failed, and those that pass do so again so
	// shortly that others may follow. Of one that fails: it is one of those, as it failed when they did.
	Returning bool
}

// A Detail is what people want to know of a Condition besides.
type Detail struct {
	Since time.Time     // the Condition's Check, or the slow start, is so; zero: not known
	Asked time.Time     // when the last answer of the check came, or should have; zero: none yet
	Took  time.Duration // of that
	Error string        // of that, or why it is not asked now; empty: it was good. Escaped, of bounded length
	Drain *Drain        // nil: it is not drained
}

// A Drain says who drains an endpoint, or this host. Its texts are escaped, and of bounded length.
type Drain struct {
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by"`             // the user
	At     time.Time `json:"since"`          // it began
	Until  time.Time `json:"until,omitzero"` // established connections may last; zero: until they end
}

// A Conditioner knows Conditions. Use and Conditions are called from the goroutine of Loop.Run,
// Details from any. They must not block.
type Conditioner interface {
	// Use returns the conditions of a service as it is used from now on, before that is
	// programmed. Nil: the service is gone, and the result is not used.
	Use(key source.Key, svc *source.Service) Conditions
	// Conditions returns those of a service in use, after Loop.Reconsider was called for it.
	Conditions(key source.Key) Conditions
	// Details returns what else is known of the endpoints of a service in use.
	Details(key source.Key) map[netip.AddrPort]Detail
}

// noConditions knows of nothing.
type noConditions struct{}

func (noConditions) Use(source.Key, *source.Service) Conditions   { return nil }
func (noConditions) Conditions(source.Key) Conditions             { return nil }
func (noConditions) Details(source.Key) map[netip.AddrPort]Detail { return nil }

// of returns the condition of an endpoint.
func (c Conditions) of(svc *source.Service, e *source.Endpoint) Condition {
	if len(c) == 0 {
		return Condition{}
	}
	return c[svc.EndpointAt(e)]
}

// A Subject is a service, and what is known of its endpoints.
type Subject struct {
	*source.Service
	Conditions Conditions
}

// subject returns a service in use, with what is known of its endpoints.
func (l *Loop) subject(svc *source.Service) Subject {
	return Subject{svc, l.conditions[svc.Key]}
}

// use takes a service into use, or out of it if svc is nil. The caller holds l.mu.
func (l *Loop) use(key source.Key, svc *source.Service) Subject {
	return l.know(key, svc, l.cfg.Conditions.Use(key, svc))
}

// know sets what is known of the endpoints of a service; svc is nil where it is gone.
func (l *Loop) know(key source.Key, svc *source.Service, known Conditions) Subject {
	delete(l.allFail, key)
	if svc == nil || len(known) == 0 {
		delete(l.conditions, key)
		return Subject{Service: svc}
	}
	s := Subject{svc, known}
	l.conditions[key] = known
	if s.AllFail() != "" {
		l.allFail[key] = s
	}
	return s
}

// reconsider has services resolved again of whose endpoints more is known.
func (l *Loop) reconsider(keys map[source.Key]bool, o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range keys {
		svc := l.tracker.inUse(key)
		if svc == nil {
			continue // it went meanwhile
		}
		o.services[key] = l.know(key, svc, l.cfg.Conditions.Conditions(key))
		l.nodeHealth.set(key, o.services[key], l.node, l.number+1)
	}
	if len(keys) > 0 {
		l.revision.Add(1)
	}
}

// Details returns what else is known of the endpoints of a service in use, by
// source.Service.EndpointAt. It may be called from any goroutine.
func (l *Loop) Details(key source.Key) map[netip.AddrPort]Detail {
	return l.cfg.Conditions.Details(key)
}

// details is Details of a service of which there can be some. The caller does not hold l.mu.
func (l *Loop) details(s Subject) map[netip.AddrPort]Detail {
	if len(s.Conditions) == 0 && s.HealthCheck == nil {
		return nil
	}
	return l.Details(s.Key)
}
