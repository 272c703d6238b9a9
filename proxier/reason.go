package proxier

import (
	"cmp"
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Cause is why a route rejects or drops what it is sent.
type Cause uint8

// The causes, in the order in which they are looked for: each says that what the
// ones before it ask for is there.
const (
	NoCause       Cause = iota // it balances
	NoEndpoint                 // the service has none
	NoneOfFamily               // none of the frontend's family
	NoneOfPort                 // of the family, but none that serves the port
	NoneLocal                  // policy local: usable ones, but none of them on this node
	NoneReady                  // none that is ready, or serves while it terminates
	NoneWeighted               // all with weight 0
	NoneUp                     // the check of all fails
	NoneUndrained              // all are drained
	NoneEnabled                // all are disabled
	NoneUsable                 // several of NoneReady to NoneEnabled, or some are still being checked or are backups
)

// A Reason says why a route of a frontend rejects or drops. The zero Reason: it balances.
type Reason struct {
	Cause  Cause
	Family Family
	Local  bool // policy local: only endpoints of this node count

	// Endpoints that could serve the frontend if they were usable; those that count
	// under Local, where it does. Their sum is 0 for the first three causes.
	NotReady, Weightless, Down, Draining, Disabled int

	Checking, Backup int // of NoneLocal: those of this node that are not used while others are

	Elsewhere int // of NoneLocal: the usable ones of other nodes
}

// Why returns why r, a route of f, does not balance. Both are what Resolve has made
// of svc on node. It looks at all endpoints, which costs nothing where r balances.
func Why(svc Subject, node *Node, f *Frontend, r Route) Reason {
	if r.Action == Balance {
		return Reason{}
	}
	why := Reason{Family: FamilyOf(f.Key.Addr), Local: r.Action == Drop}
	fitting, cause := fittingEndpoints(svc, f)
	if cause != NoCause {
		why.Cause = cause
		return why
	}
	elsewhere := make(map[endpointState]int)
	for _, e := range fitting {
		switch state := stateOf(svc, e); {
		case why.Local && !isLocal(e, node):
			elsewhere[state]++
		default:
			*why.count(state)++
		}
	}
	why.Elsewhere = cmp.Or(elsewhere[ready], elsewhere[checking], elsewhere[terminating], elsewhere[failed])
	why.Cause = why.unusable()
	return why
}

// fittingEndpoints returns the endpoints of the family of f that serve its port, or why there are none.
func fittingEndpoints(svc Subject, f *Frontend) ([]*source.Endpoint, Cause) {
	if len(svc.Endpoints) == 0 {
		return nil, NoEndpoint
	}
	port := svc.portOf(f)
	var fitting []*source.Endpoint
	cause := NoneOfFamily
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		if FamilyOf(e.Addr) != FamilyOf(f.Key.Addr) {
			continue
		}
		cause = NoneOfPort
		if port != nil && e.Port(*port) != 0 {
			fitting = append(fitting, e)
		}
	}
	if len(fitting) > 0 {
		cause = NoCause
	}
	return fitting, cause
}

// unusable returns the cause where there are endpoints.
func (r Reason) unusable() Cause {
	if r.Local {
		return NoneLocal
	}
	cause := NoCause
	for _, p := range r.parts() {
		switch {
		case p.n == 0:
		case cause != NoCause:
			return NoneUsable
		default:
			cause = p.cause
		}
	}
	return cause
}

// A reasonPart is how many endpoints are unusable for one reason.
type reasonPart struct {
	n     int
	cause Cause // if all are
	words string
}

func (r Reason) parts() []reasonPart {
	return []reasonPart{
		{r.NotReady, NoneReady, "not ready"},
		{r.Down, NoneUp, "down"},
		{r.Draining, NoneUndrained, "draining"},
		{r.Weightless, NoneWeighted, "with weight 0"},
		{r.Disabled, NoneEnabled, "disabled"},
		{r.Checking, NoneUsable, "checking"},
		{r.Backup, NoneUsable, "backup"},
	}
}

// count returns where endpoints of a state are counted that is not usable.
func (r *Reason) count(state endpointState) *int {
	switch state {
	case failed:
		return &r.Down
	case draining:
		return &r.Draining
	case weightless:
		return &r.Weightless
	case disabled:
		return &r.Disabled
	case checking:
		return &r.Checking
	case ready:
		return &r.Backup
	}
	return &r.NotReady
}

// String returns the reason in words, without the name of the service; empty: it balances.
func (r Reason) String() string {
	switch r.Cause {
	case NoEndpoint:
		return "no endpoints"
	case NoneOfFamily:
		return "no " + r.Family.Title() + " endpoint"
	case NoneOfPort:
		return "no " + r.Family.Title() + " endpoint serves this port"
	case NoneLocal:
		return "policy local: " + r.here() + fmt.Sprintf("; usable elsewhere: %d", r.Elsewhere)
	case NoneReady, NoneWeighted, NoneUp, NoneUndrained, NoneEnabled, NoneUsable:
		return "no usable endpoint: " + r.counts()
	}
	return ""
}

func (r Reason) here() string {
	if r.counts() == "" {
		return "no endpoint on this node"
	}
	return "no usable endpoint on this node: " + r.counts()
}

// counts returns how many endpoints are unusable, and why: "2 not ready, 1 with weight 0".
func (r Reason) counts() string {
	var parts []string
	for _, p := range r.parts() {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.words))
		}
	}
	return strings.Join(parts, ", ")
}
