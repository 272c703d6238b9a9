package report

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier/policy"
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

	Gets  float64       `json:"new_connections_percent,omitempty"` // from outside, by weight, at the first address of its family that balances
	Share int           `json:"share_percent,omitempty"`           // of its weight, while its state is "slow start"
	Since time.Time     `json:"since,omitzero"`                    // State is so; zero: not known, as where it follows from files alone
	Check *CheckStatus  `json:"check,omitempty"`                   // nil: it is not checked
	Drain *policy.Drain `json:"drain,omitempty"`                   // nil: it is not drained

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

// endpointStatuses returns those of all endpoints.
func (u *usedService) endpointStatuses(node *policy.Node, details map[netip.AddrPort]policy.Detail) (list []EndpointStatus) {
	tiers, chosen := u.TiersInUse(), u.choices()
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		st := u.endpointStatus(e, u.Shown(e, tiers), node, details[u.EndpointAt(e)])
		for j := range chosen {
			if c := &chosen[j]; c.weights > 0 && c.family == policy.FamilyOf(e.Addr) {
				st.Gets = math.Round(1000*float64(u.WeightAt(c.at, e))/float64(c.weights)) / 10
			}
		}
		list = append(list, st)
	}
	return list
}

// A choice is among the targets of a frontend.
type choice struct {
	family  policy.Family
	at      *policy.Frontend
	weights uint64 // of all; 0: there is none
}

// choices returns the first frontend of each family that balances.
func (u *usedService) choices() (chosen [2]choice) {
	for i, r := range u.families {
		if r.Resolved == nil {
			continue
		}
		if j := slices.IndexFunc(r.Frontends, func(f *policy.Frontend) bool { return f.Outside.Action == policy.Balance }); j >= 0 {
			f := r.Frontends[j]
			chosen[i] = choice{r.Family.Family, f, policy.WeightOf(f.Outside.Pool.Targets)}
		}
	}
	return chosen
}

func (u *usedService) endpointStatus(e *source.Endpoint, state policy.EndpointState, node *policy.Node, detail policy.Detail) EndpointStatus {
	known := u.Conditions.Of(u.Service, e)
	st := EndpointStatus{
		Address: endpointName(*e), Local: policy.IsLocal(e, node), State: state.String(), Weight: e.Weight, Tier: e.Tier, Drain: detail.Drain,
		MaxConnections: e.Extras().MaxConnections,
	}
	if u.HealthCheck != nil {
		st.Check = &CheckStatus{
			Type: u.HealthCheck.Type.String(), Result: known.Check.String(), Since: detail.Since,
			Asked: detail.Asked, Took: detail.Took, Error: detail.Error,
		}
	}
	switch state {
	case policy.SlowStart:
		st.Share, st.Since = 100*int(known.Share)/policy.SlowStartSteps, detail.Since
	case policy.Up, policy.Backup, policy.Down, policy.Checking:
		st.Since = detail.Since
	case policy.Draining:
		if detail.Drain != nil {
			st.Since = detail.Drain.At
		}
	}
	return st
}
