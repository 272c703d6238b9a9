package loop

import (
	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A catalog has the services in use, what is known of their endpoints, and the node that they are on.
type catalog struct {
	tracker    *claims.Tracker
	conditions map[source.Key]policy.Conditions // of services of whose endpoints something is known
	node       *policy.Node
	unread     []string // sources that have not called Synced yet
}

func newCatalog(cfg *Config) catalog {
	c := catalog{
		tracker:    claims.NewTracker(cfg.Reserved, cfg.Sources...),
		conditions: make(map[source.Key]policy.Conditions), node: cfg.Node, unread: cfg.Sources,
	}
	if cfg.Limits != nil {
		c.tracker.Limit(*cfg.Limits)
	}
	return c
}

// read notes that a source has called Synced.
func (c *catalog) read(src string) {
	c.unread = lists.Keep(c.unread, func(s string) bool { return s != src })
}

// services returns all of them.
func (c *catalog) services() map[source.Key]policy.Subject {
	all := make(map[source.Key]policy.Subject)
	c.tracker.Services(func(s *source.Service, _ source.UnitID) {
		all[s.Key] = policy.Subject{Service: s, Conditions: c.conditions[s.Key]}
	})
	return all
}

// know sets what is known of the endpoints of a service; svc is nil where it is gone.
func (c *catalog) know(key source.Key, svc *source.Service, known policy.Conditions) policy.Subject {
	if svc == nil || len(known) == 0 {
		delete(c.conditions, key)
		return policy.Subject{Service: svc}
	}
	c.conditions[key] = known
	return policy.Subject{Service: svc, Conditions: known}
}
