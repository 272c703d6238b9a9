package policy

import (
	"net/netip"
	"slices"
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

// Of returns the condition of an endpoint.
func (c Conditions) Of(svc *source.Service, e *source.Endpoint) Condition {
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

// Serves reports whether the service has an address of the family. One with only node
// ports has both families.
func Serves(svc *source.Service, fam Family) bool {
	hasAddrs := false
	for a := range svc.Addresses() {
		if hasAddrs = true; FamilyOf(a) == fam {
			return true
		}
	}
	return !hasAddrs && svc.HasNodePort()
}

// servesSome reports whether the endpoint serves only some of the service's ports.
func servesSome(e source.Endpoint) bool {
	for _, n := range e.Ports {
		if n == 0 {
			return true
		}
	}
	return false
}

// EndpointsOf returns how many endpoints are of a family.
func (s Subject) EndpointsOf(fam Family) (n int) {
	for i := range s.Endpoints {
		if FamilyOf(s.Endpoints[i].Addr) == fam {
			n++
		}
	}
	return n
}

// portOf returns the port of the service that a frontend is of; nil: it has none such any more.
func (s Subject) portOf(f *Frontend) *source.Port {
	i := slices.IndexFunc(s.Ports, func(p source.Port) bool { return p.Name == f.ServicePort.Port })
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// WeightAt returns the weight of an endpoint among the targets of new connections from outside to a frontend; 0: it gets none.
func (s Subject) WeightAt(f *Frontend, e *source.Endpoint) uint16 {
	p := s.portOf(f)
	if p == nil || f.Outside.Action != Balance {
		return 0
	}
	targets, want := f.Outside.Pool.Targets, Target{address: addressOf(e.Addr), port: e.Port(*p)}
	if i, ok := slices.BinarySearchFunc(targets, want, Target.compare); ok {
		return targets[i].Weight
	}
	return 0
}

// startsSlowly reports whether weights make a slow start.
func (s Subject) startsSlowly() bool { return s.SlowStart > 0 && source.NoSlowStart(s.Scheduler) == "" }

// StateOf returns what an endpoint's own state is, whatever the others are.
func StateOf(svc Subject, e *source.Endpoint) EndpointState {
	known := svc.Conditions.Of(svc.Service, e)
	switch {
	case svc.Disabled || e.Disabled:
		return Disabled
	case e.Weight == 0:
		return ZeroWeight
	case known.Drained:
		return Draining
	case !isReady(svc.Service, e) && !(e.Serving && e.Terminating):
		return NotReady
	case svc.HealthCheck != nil && known.Check == source.CheckFailed:
		return Down
	case svc.HealthCheck != nil && known.Check == source.CheckUnknown:
		return Checking
	case isReady(svc.Service, e):
		return Ready
	}
	return Terminating
}

// IsLocal reports whether the endpoint runs on this node.
func IsLocal(e *source.Endpoint, node *Node) bool {
	if name := e.Extras().Node; name != "" {
		return name == node.Name
	}
	return node.Owns(e.Addr)
}

func isReady(svc *source.Service, e *source.Endpoint) bool { return e.Ready || svc.PublishNotReady }

// present reports whether the endpoint still serves its established connections.
func present(svc Subject, e *source.Endpoint) bool { return isReady(svc.Service, e) || e.Serving }
