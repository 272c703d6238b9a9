package proxier

import (
	"maps"
	"slices"

	"svcproxy/source"
)

// A HealthCheck is what health_check_node_port of one service answers.
type HealthCheck struct {
	Key            source.Key
	Port           uint16
	LocalEndpoints int // of this node, ready, weight above 0
}

// health has the health check of each service that has one.
type health struct {
	checks map[source.Key]HealthCheck
	dirty  bool // changed since last told
}

func newHealth() health { return health{checks: make(map[source.Key]HealthCheck), dirty: true} }

// set brings the health check of one service up to date; svc is nil when it is gone.
func (h *health) set(key source.Key, svc *source.Service, node *Node) {
	old, had := h.checks[key]
	if svc == nil || svc.HealthCheckNodePort == 0 {
		delete(h.checks, key)
		h.dirty = h.dirty || had
		return
	}
	now := HealthCheck{Key: key, Port: svc.HealthCheckNodePort, LocalEndpoints: localReady(svc, node)}
	h.checks[key] = now
	h.dirty = h.dirty || now != old
}

// tell calls f with all health checks, in order of their names, if one changed since it was last called.
func (h *health) tell(f func([]HealthCheck)) {
	if !h.dirty || f == nil {
		return
	}
	h.dirty = false
	f(slices.SortedFunc(maps.Values(h.checks), func(a, b HealthCheck) int { return a.Key.Compare(b.Key) }))
}
