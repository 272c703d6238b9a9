package proxier

import (
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// An EndpointStatus is one endpoint of a service.
type EndpointStatus struct {
	Address string `json:"address"`
	Local   bool   `json:"local"`
	State   string `json:"state"` // of EndpointStates
	Weight  uint16 `json:"weight"`
	Tier    uint8  `json:"tier,omitempty"`

	MaxConnections uint32 `json:"max_connections,omitempty"` // for each address and port of the service; 0: any number

	Share int          `json:"share_percent,omitempty"` // of its weight, while its state is "slow start"
	Since time.Time    `json:"since,omitzero"`          // State is so; zero: not known, as where it follows from files alone
	Check *CheckStatus `json:"check,omitempty"`         // nil: it is not checked
	Drain *Drain       `json:"drain,omitempty"`         // nil: it is not drained

	Active *uint64 `json:"active,omitempty"` // connections, on all ports of the service; nil: they are not counted
}

// A CheckStatus is what the health check of a service says of an endpoint, and the last answer
// that came, which counts only with others in a row.
type CheckStatus struct {
	Type   string        `json:"type"`            // as in files: "tcp"
	Result string        `json:"result"`          // "passed", "failed" or "unknown"
	Since  time.Time     `json:"since,omitzero"`  // Result is so
	Asked  time.Time     `json:"asked,omitzero"`  // when the last answer came, or should have; zero: none yet
	Took   time.Duration `json:"took_ns"`         // until it came
	Error  string        `json:"error,omitempty"` // why it was bad; empty: it was good, or there is none. Escaped, and of bounded length
}

// A tiersInUse has the highest tier of which endpoints are used. Nil: all are.
type tiersInUse PerFamily

// tiersInUse returns nil where there is one tier only.
func (s Subject) tiersInUse() *tiersInUse {
	if !slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Tier > 0 }) {
		return nil
	}
	counts := map[Family]*tierCounts{IPv4: {}, IPv6: {}}
	use := map[Family]failedUse{IPv4: s.failedUse(IPv4, nil), IPv6: s.failedUse(IPv6, nil)}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if fam := FamilyOf(e.Addr); stateOf(s, e) == Ready || s.spares(e, use[fam]) {
			counts[fam].add(e)
		}
	}
	return &tiersInUse{IPv4: counts[IPv4].last(s.MinUp), IPv6: counts[IPv6].last(s.MinUp)}
}

// spare reports whether a ready endpoint is of a tier that is not needed.
func (t *tiersInUse) spare(e *source.Endpoint) bool {
	return t != nil && int(e.Tier) > PerFamily(*t).Of(FamilyOf(e.Addr))
}

// endpointStatuses returns those of all endpoints.
func (u *usedService) endpointStatuses(node *Node) (list []EndpointStatus) {
	tiers := u.tiersInUse()
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		list = append(list, u.endpointStatus(e, u.shown(e, tiers), node))
	}
	return list
}

func (u *usedService) endpointStatus(e *source.Endpoint, state EndpointState, node *Node) EndpointStatus {
	known, detail := u.Conditions.of(u.Service, e), u.details[u.EndpointAt(e)]
	st := EndpointStatus{
		Address: endpointName(*e), Local: isLocal(e, node), State: state.String(), Weight: e.Weight, Tier: e.Tier, Drain: detail.Drain,
		MaxConnections: e.MaxConnections,
	}
	if u.HealthCheck != nil {
		st.Check = &CheckStatus{
			Type: u.HealthCheck.Type.String(), Result: known.Check.String(), Since: detail.Since,
			Asked: detail.Asked, Took: detail.Took, Error: detail.Error,
		}
	}
	switch state {
	case SlowStart:
		st.Share, st.Since = 100*int(known.Share)/SlowStartSteps, detail.Since
	case Up, Backup, Down, Checking:
		st.Since = detail.Since
	case Draining:
		if detail.Drain != nil {
			st.Since = detail.Drain.At
		}
	}
	return st
}
