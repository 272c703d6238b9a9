package policy

import (
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// An EndpointState says whether an endpoint gets new connections or, of several reasons, the first why it does not.
type EndpointState uint8

// The states that stateOf returns: of several that are true it is the first of those after Terminating, from the last on.
const (
	Ready       EndpointState = iota
	Terminating               // serving, not ready: used where no endpoint is ready
	Checking                  // its check has no result yet: used where no other can be
	Down                      // its check fails
	NotReady                  // and it does not terminate
	Draining                  // by svcproxy drain
	ZeroWeight                // its weight is 0
	Disabled                  // by its file

	// States of ready endpoints that only status shows.
	Up        // it passes its check
	SlowStart // its share grows
	Backup    // of a tier that is not needed

	// Why it does not serve a frontend.
	Gone        // neither ready nor serving
	OtherNode   // policy local, and it is not of this node
	NotNear     // traffic_distribution prefers nearer ones
	OtherFamily // it has no address of the family
	OtherPorts  // it does not serve the port
)

// endpointStates has a word for each, as status, metrics and explain have it.
var endpointStates = []string{
	Ready: "ready", Terminating: "terminating", Checking: "checking", Down: "down",
	NotReady: "not ready", Draining: "draining", ZeroWeight: "weight 0", Disabled: "disabled",
	Up: "up", SlowStart: "slow start", Backup: "backup",
	Gone:        "neither ready nor serving",
	OtherNode:   "on another node, and the policy is local",
	NotNear:     "farther away than others, which traffic_distribution prefers",
	OtherFamily: "of the other address family",
	OtherPorts:  "does not serve this port",
}

func (s EndpointState) String() string { return endpointStates[s] }

// EndpointStates returns the states that status and metrics have: not those of a frontend.
func EndpointStates() []string { return slices.Clone(endpointStates[:Gone]) }

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

// Shown returns the state of an endpoint as status shows it.
func (s Subject) Shown(e *source.Endpoint, t *tiersInUse) EndpointState {
	state, known := StateOf(s, e), s.Conditions.Of(s.Service, e)
	switch {
	case state != Ready:
		return state
	case t.spare(e):
		return Backup
	case s.startsSlowly() && known.Share > 0:
		return SlowStart
	case s.HealthCheck != nil:
		return Up
	}
	return Ready
}

// States returns what each endpoint of a service is, in their order, to new connections of one family to one port by a
// pool of some scope. Those that get some are Ready, also where they terminate or are Down.
func States(svc Subject, node *Node, fam Family, p source.Port, scope Scope) []EndpointState {
	used := make(map[*source.Endpoint]bool)
	chosen := choose(svc, node, fam, &p).targets
	for _, e := range chosen[scope] {
		used[e] = true
	}
	var highest uint8 // of the tiers in use, which are those of all nodes
	for _, e := range chosen[ClusterScope] {
		highest = max(highest, e.Tier)
	}
	out := make([]EndpointState, len(svc.Endpoints))
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		state := StateOf(svc, e)
		switch {
		case FamilyOf(e.Addr) != fam:
			state = OtherFamily
		case e.Port(p) == 0:
			state = OtherPorts
		case !present(svc, e):
			state = Gone
		case used[e]:
			state = Ready
		case scope == LocalScope && !IsLocal(e, node):
			state = OtherNode
		case state == Ready && e.Tier > highest:
			state = Backup
		case state == Ready:
			state = NotNear
		}
		out[i] = state
	}
	return out
}
