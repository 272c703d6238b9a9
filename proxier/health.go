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
	LocalEndpoints PerFamily // of this node, ready, weight above 0
	InCluster      bool
}

// PerFamily is a number for each address family.
type PerFamily struct{ IPv4, IPv6 int }

// Of returns the number of one family.
func (p PerFamily) Of(fam Family) int {
	if fam == IPv6 {
		return p.IPv6
	}
	return p.IPv4
}

// health has the health check of each service that has one.
type health struct {
	checks map[source.Key]HealthCheck
	dirty  bool   // changed since last told
	number uint64 // of the order that told the families of the first such change
}

func newHealth() health { return health{checks: make(map[source.Key]HealthCheck), dirty: true} }

// set brings the health check of one service up to date; svc is nil when it is gone.
func (h *health) set(key source.Key, svc *source.Service, node *Node, number uint64) {
	old, had := h.checks[key]
	if svc == nil || svc.HealthCheckNodePort == 0 {
		delete(h.checks, key)
		h.touch(had, number)
		return
	}
	now := HealthCheck{Key: key, Port: svc.HealthCheckNodePort, LocalEndpoints: localReady(svc, node), InCluster: svc.InCluster}
	h.checks[key] = now
	h.touch(now != old, number)
}

func (h *health) touch(changed bool, number uint64) {
	if changed && !h.dirty {
		h.dirty, h.number = true, number
	}
}

// tell calls f with all health checks, in order of their names, if one changed
// since it was last called and the kernel holds what changed it.
func (h *health) tell(held uint64, f func([]HealthCheck)) {
	if !h.dirty || held < h.number || f == nil {
		return
	}
	h.dirty = false
	f(slices.SortedFunc(maps.Values(h.checks), func(a, b HealthCheck) int { return a.Key.Compare(b.Key) }))
}
