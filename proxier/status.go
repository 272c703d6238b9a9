package proxier

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"svcproxy/source"
)

// A Status is what a Loop tells of itself.
type Status struct {
	Families []FamilyStatus  `json:"families"`
	Services []ServiceStatus `json:"services"` // sorted by name
	Refusals []Refusal       `json:"refusals,omitempty"`
}

// A FamilyStatus tells how the syncs of one family go.
type FamilyStatus struct {
	Family       string        `json:"family"`
	LastSync     time.Time     `json:"last_sync"`       // that succeeded; zero: none yet
	Took         time.Duration `json:"took_ns"`         // the last that succeeded
	Error        string        `json:"error,omitempty"` // of the last sync, if it failed
	FailingSince time.Time     `json:"failing_since,omitzero"`
	Unserved     string        `json:"unserved,omitempty"` // virtual servers that could not be had, and why
}

// A ServiceStatus is one service as it is used, over both families.
type ServiceStatus struct {
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Unit      string           `json:"unit"` // the file or object it is from
	Frontends []FrontendStatus `json:"frontends"`
	Endpoints []EndpointStatus `json:"endpoints"`
	Warnings  []string         `json:"warnings,omitempty"`
}

// A FrontendStatus is one address and port of a service.
type FrontendStatus struct {
	Address string `json:"address"` // "10.96.0.10:80/tcp"; "ipv4:30080/tcp" for a node port
	Kind    string `json:"kind"`
	Action  string `json:"action"`  // of everyone outside
	Targets int    `json:"targets"` // that get new connections
}

// An EndpointStatus is one endpoint of a service.
type EndpointStatus struct {
	Address string `json:"address"`
	Local   bool   `json:"local"`
	State   string `json:"state"` // "ready", "terminating", "not ready" or "weight 0"
	Weight  uint16 `json:"weight"`
}

// A Refusal is a unit that is not used as it stands, because another unit holds something it claims.
type Refusal struct {
	Unit   source.UnitID  `json:"unit"`
	Since  time.Time      `json:"since"`
	Stale  bool           `json:"stale"` // an earlier version of it is in use
	Faults []source.Fault `json:"faults"`
}

// Status returns what the Loop holds and how its syncs go. It may be called
// from any goroutine, also during a sync.
func (l *Loop) Status() Status {
	l.mu.RLock()
	defer l.mu.RUnlock()
	st := Status{Refusals: l.tracker.Refusals()}
	for _, f := range l.families {
		st.Families = append(st.Families, f.status())
	}
	l.tracker.services(func(s *source.Service, id source.UnitID) {
		st.Services = append(st.Services, l.service(s, id))
	})
	slices.SortFunc(st.Services, func(a, b ServiceStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return st
}

func (f *family) status() FamilyStatus {
	st := FamilyStatus{Family: f.fam.String(), LastSync: f.lastGood, Took: f.took, FailingSince: f.failingSince, Unserved: f.unserved.text()}
	if f.err != nil {
		st.Error = f.err.Error()
	}
	return st
}

func (l *Loop) service(s *source.Service, id source.UnitID) ServiceStatus {
	st := ServiceStatus{Namespace: s.Namespace, Name: s.Name, Unit: id.Name}
	for _, f := range l.families {
		r := f.state.Services[s.Key]
		if r == nil {
			continue
		}
		for _, fe := range r.Frontends {
			st.Frontends = append(st.Frontends, fe.status())
		}
		st.Warnings = append(st.Warnings, r.Warnings...)
	}
	for i := range s.Endpoints {
		st.Endpoints = append(st.Endpoints, endpointStatus(s, &s.Endpoints[i], l.node))
	}
	return st
}

func (f *Frontend) status() FrontendStatus {
	addr := netip.AddrPortFrom(f.Key.Addr, f.Key.Port).String()
	if f.Key.Kind == NodePort {
		addr = fmt.Sprintf("%s:%d", FamilyOf(f.Key.Addr), f.Key.Port)
	}
	return FrontendStatus{
		Address: addr + "/" + f.Key.Protocol.String(),
		Kind:    f.Key.Kind.String(),
		Action:  f.Outside.Action.String(),
		Targets: len(f.Outside.Pool.Targets),
	}
}

func endpointStatus(s *source.Service, e *source.Endpoint, node *Node) EndpointStatus {
	state := "not ready"
	switch {
	case e.Weight == 0:
		state = "weight 0"
	case isReady(s, e):
		state = "ready"
	case e.Serving && e.Terminating:
		state = "terminating"
	}
	return EndpointStatus{Address: endpointName(*e), Local: isLocal(e, node), State: state, Weight: e.Weight}
}
