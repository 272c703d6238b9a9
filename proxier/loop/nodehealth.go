package loop

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A NodeHealth is what health_check_node_port of one service answers: a source.HealthCheck asks endpoints instead.
type NodeHealth struct {
	Key            source.Key
	Port           uint16
	LocalEndpoints policy.PerFamily // of this node, ready, weight above 0

	// Addresses select those of the node that it answers on; nil: those of node ports. Never changed.
	Addresses *source.NodeAddresses
	InCluster bool
}

// nodeHealths has that of each service that has one. A load balancer must
// not learn of endpoints that the kernel does not send to yet: a rise is reported
// when the kernel holds it, a fall at once.
type nodeHealths struct {
	checks map[source.Key]NodeHealth
	rises  map[source.Key]uint64 // of those that must not be told yet: the order that the kernel must hold
	told   map[source.Key]NodeHealth
	dirty  bool // something may have to be reported
	begun  bool // something was reported, even if only that there is none
}

func newNodeHealths() nodeHealths {
	return nodeHealths{checks: make(map[source.Key]NodeHealth), rises: make(map[source.Key]uint64), dirty: true}
}

// set updates that of one service; svc has no Service when it was removed.
// number is that of the order that has the service.
func (h *nodeHealths) set(key source.Key, svc policy.Subject, node *policy.Node, number uint64) {
	old, had := h.checks[key]
	if svc.Service == nil || svc.HealthCheckNodePort == 0 {
		delete(h.checks, key)
		delete(h.rises, key)
		h.dirty = h.dirty || had
		return
	}
	now := NodeHealth{Key: key, Port: svc.HealthCheckNodePort, LocalEndpoints: policy.LocalReady(svc, node), Addresses: svc.NodePortAddresses, InCluster: svc.InCluster}
	h.checks[key] = now
	h.dirty = h.dirty || now != old
	if !had || now.Port != old.Port || now.LocalEndpoints.Rose(old.LocalEndpoints) {
		h.rises[key] = number
	}
}

// report calls f with all of them, in order of their names, as far as the
// kernel holds what they report of, if that changed since it was last called.
func (h *nodeHealths) report(holds func(source.Key, uint64) bool, f func([]NodeHealth)) {
	for key, number := range h.rises {
		if holds(key, number) {
			delete(h.rises, key)
			h.dirty = true
		}
	}
	if !h.dirty || f == nil {
		return
	}
	h.dirty = false
	now := h.now()
	if h.begun && maps.Equal(now, h.told) {
		return
	}
	h.told, h.begun = now, true
	f(slices.SortedFunc(maps.Values(now), func(a, b NodeHealth) int { return a.Key.Compare(b.Key) }))
}

// now returns what may be reported: for a rise what was reported before, as far as
// that still holds, and nothing on a port that now belongs to another service.
func (h *nodeHealths) now() map[source.Key]NodeHealth {
	out, ports := make(map[source.Key]NodeHealth), make(map[uint16]bool)
	for key, c := range h.checks {
		if _, waits := h.rises[key]; !waits {
			out[key], ports[c.Port] = c, true
		}
	}
	for key := range h.rises {
		if c, some := h.told[key]; some && !ports[c.Port] {
			c.LocalEndpoints.IPv4 = min(c.LocalEndpoints.IPv4, h.checks[key].LocalEndpoints.IPv4)
			c.LocalEndpoints.IPv6 = min(c.LocalEndpoints.IPv6, h.checks[key].LocalEndpoints.IPv6)
			out[key] = c
		}
	}
	return out
}
