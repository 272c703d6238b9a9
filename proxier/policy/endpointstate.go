package policy

import "slices"

// An EndpointState says whether an endpoint gets new connections or, of several reasons, the first why it does not.
type EndpointState uint8

// The states that StateOf returns. Where several are true it returns the first of Disabled, ZeroWeight, Draining, NotReady,
// Down, Checking, Ready and Terminating.
const (
	Ready       EndpointState = iota
	Terminating               // serving, not ready: used where no endpoint is ready
	Checking                  // its check has no result yet: used where none passes that is as ready
	Down                      // its check fails
	NotReady                  // and it does not terminate
	Draining                  // by svcproxy drain
	ZeroWeight                // its weight is 0
	Disabled                  // by its file

	// Of ready endpoints, for status and explain.
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
