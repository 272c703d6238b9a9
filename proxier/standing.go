package proxier

import "svcproxy.dev/svcproxy/source"

// A Standing says whether an endpoint gets new connections or, of several reasons, the
// first one why it does not.
type Standing uint8

// The standings. Those up to Gone are of the endpoint alone, in the order in which
// choose looks for them; the others come of what else the service has.
const (
	Chosen      Standing = iota // it gets new connections
	OtherFamily                 // it has no address of the family
	OtherPorts                  // it does not serve the port
	Gone                        // neither ready nor serving
	Disabled                    // by its file
	ZeroWeight                  // its weight is 0
	Draining                    // by svcproxy drain
	NotReady                    // serving, neither ready nor terminating
	Down                        // its check fails
	Checking                    // its check has no result, and another endpoint is used
	Terminating                 // used only where no endpoint is ready, and one is
	Backup                      // of a tier that is not needed
	OtherNode                   // policy local, and it is not of this node
	NotNear                     // traffic_distribution prefers nearer ones
)

// String says it in the words of files.
func (s Standing) String() string {
	return [...]string{
		Chosen: "in use", OtherFamily: "of the other address family", OtherPorts: "does not serve this port",
		Gone: "not ready", Disabled: "disabled", ZeroWeight: "weight 0", Draining: "draining", NotReady: "not ready, serves what it has",
		Down: "down", Checking: "checking", Terminating: "terminating", Backup: "backup, of a tier that is not needed",
		OtherNode: "on another node, and the policy is local", NotNear: "farther away than others, which traffic_distribution prefers",
	}[s]
}

// present reports whether the endpoint still serves its established connections.
func (s Standing) present() bool { return s != OtherFamily && s != OtherPorts && s != Gone }

// standingOf is standing in one family, and for one port unless that is nil.
func standingOf(svc Subject, e *source.Endpoint, fam Family, p *source.Port) Standing {
	switch {
	case FamilyOf(e.Addr) != fam:
		return OtherFamily
	case p != nil && e.Port(*p) == 0:
		return OtherPorts
	}
	return standing(svc, e)
}

// standing returns what an endpoint's own state makes of it, without the others.
func standing(svc Subject, e *source.Endpoint) Standing {
	if !present(svc, e) {
		return Gone
	}
	return [...]Standing{
		ready: Chosen, terminating: Terminating, checking: Checking, failed: Down,
		notReady: NotReady, draining: Draining, weightless: ZeroWeight, disabled: Disabled,
	}[stateOf(svc, e)]
}

// Standings returns the standing of each endpoint of a service, in their order, for new
// connections of one family to one port by a pool of the given scope.
func Standings(svc Subject, node *Node, fam Family, p source.Port, scope Scope) []Standing {
	used := make(map[*source.Endpoint]bool)
	chosen := choose(svc, node, fam, &p).targets
	for _, e := range chosen[scope] {
		used[e] = true
	}
	var highest uint8 // of the tiers in use, which are those of all nodes
	for _, e := range chosen[ClusterScope] {
		highest = max(highest, e.Tier)
	}
	out := make([]Standing, len(svc.Endpoints))
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		out[i] = standingOf(svc, e, fam, &p)
		switch {
		case used[e]:
			out[i] = Chosen
		case scope == LocalScope && out[i].present() && !isLocal(e, node):
			out[i] = OtherNode
		case out[i] == Chosen && e.Tier > highest:
			out[i] = Backup
		case out[i] == Chosen:
			out[i] = NotNear
		}
	}
	return out
}
