package loop

import (
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Conditioner knows Conditions. It is called from the goroutine of Loop.Run, and must not block.
type Conditioner interface {
	// Use returns the conditions of a service as it is used from now on, before that is
	// programmed. Nil: the service is gone, and the result is not used.
	Use(key source.Key, svc *source.Service) policy.Conditions
	// Conditions returns those of a service in use, after Loop.Reconsider was called for it.
	Conditions(key source.Key) policy.Conditions
}

// noConditions knows of nothing.
type noConditions struct{}

func (noConditions) Use(source.Key, *source.Service) policy.Conditions { return nil }
func (noConditions) Conditions(source.Key) policy.Conditions           { return nil }

// subject returns a service in use, with what is known of its endpoints.
func (l *Loop) subject(svc *source.Service) policy.Subject {
	return policy.Subject{Service: svc, Conditions: l.conditions[svc.Key]}
}

// use takes a service into use, or out of it if svc is nil. The caller holds l.mu.
func (l *Loop) use(key source.Key, svc *source.Service) policy.Subject {
	return l.know(key, svc, l.cfg.Conditions.Use(key, svc))
}

// know sets what is known of the endpoints of a service; svc is nil where it is gone.
func (l *Loop) know(key source.Key, svc *source.Service, known policy.Conditions) policy.Subject {
	if svc == nil || len(known) == 0 {
		delete(l.conditions, key)
		return policy.Subject{Service: svc}
	}
	l.conditions[key] = known
	return policy.Subject{Service: svc, Conditions: known}
}

// reconsider has services resolved again of whose endpoints more is known.
func (l *Loop) reconsider(keys map[source.Key]bool, o *order) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range keys {
		svc := l.tracker.InUse(key)
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
