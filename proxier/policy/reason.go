package policy

import (
	"cmp"
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Reason says why a route of a frontend rejects or drops. The zero Reason: it balances.
type Reason struct {
	none string // what the service has no endpoint of that could serve the frontend; empty: it has some

	// The endpoints that could serve if they were usable, by their state; those of this node where only they count. Ready ones are
	// backups, or are not used while others are.
	unusable [Disabled + 1]int

	local     bool // policy local: only endpoints of this node count
	elsewhere int  // with that: usable ones of other nodes
}

// Why returns why r, a route of f, does not balance. Both are what Resolve has made
// of svc on node. It looks at all endpoints, which costs nothing where r balances.
func Why(svc Subject, node *Node, f *Frontend, r Route) Reason {
	if r.Action == Balance {
		return Reason{}
	}
	why := Reason{local: r.Action == Drop}
	fitting, none := fittingEndpoints(svc, f)
	if none != "" {
		why.none = none
		return why
	}
	var elsewhere [Disabled + 1]int
	for _, e := range fitting {
		if state := StateOf(svc, e); why.local && !IsLocal(e, node) {
			elsewhere[state]++
		} else {
			why.unusable[state]++
		}
	}
	why.elsewhere = cmp.Or(elsewhere[Ready], elsewhere[Checking], elsewhere[Terminating], elsewhere[Down])
	return why
}

// fittingEndpoints returns the endpoints of the family of f that serve its port, or says what there is none of.
func fittingEndpoints(svc Subject, f *Frontend) (fitting []*source.Endpoint, none string) {
	if len(svc.Endpoints) == 0 {
		return nil, "no endpoints"
	}
	port, fam := svc.portOf(f), FamilyOf(f.Key.Addr)
	none = "no " + fam.Title() + " endpoint"
	for i := range svc.Endpoints {
		e := &svc.Endpoints[i]
		switch {
		case FamilyOf(e.Addr) != fam:
		case port == nil || e.Port(*port) == 0:
			none = "no " + fam.Title() + " endpoint serves this port"
		default:
			fitting = append(fitting, e)
		}
	}
	if len(fitting) > 0 {
		none = ""
	}
	return fitting, none
}

// only reports whether there are endpoints of some states, and none of others.
func (r *Reason) only(states ...EndpointState) bool {
	others := r.unusable
	some := 0
	for _, s := range states {
		some += others[s]
		others[s] = 0
	}
	return some > 0 && others == [Disabled + 1]int{}
}

// String returns the reason in words, without the name of the service; empty: it balances.
func (r Reason) String() string {
	counts := r.counts()
	switch {
	case r.none != "":
		return r.none
	case r.local && counts == "":
		return fmt.Sprintf("policy local: no endpoint on this node; usable elsewhere: %d", r.elsewhere)
	case r.local:
		return fmt.Sprintf("policy local: no usable endpoint on this node: %s; usable elsewhere: %d", counts, r.elsewhere)
	case counts != "":
		return "no usable endpoint: " + counts
	}
	return ""
}

// counts returns how many endpoints are unusable, and why: "2 not ready, 1 with weight 0".
func (r *Reason) counts() string {
	var parts []string
	for _, p := range []struct {
		n     int
		words string
	}{
		{r.unusable[NotReady] + r.unusable[Terminating], "not ready"},
		{r.unusable[Down], "down"},
		{r.unusable[Draining], "draining"},
		{r.unusable[ZeroWeight], "with weight 0"},
		{r.unusable[Disabled], "disabled"},
		{r.unusable[Checking], "checking"},
		{r.unusable[Ready], "backup"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.words))
		}
	}
	return strings.Join(parts, ", ")
}

// WhyNot returns why a frontend does not serve as it should, and how all_failed has its part in that.
func (s Subject) WhyNot(node *Node, f *Frontend, action string) (reason, allFailed string) {
	why, setting, port := Why(s, node, f, f.Outside), s.AllFailAt(f), s.portOf(f)
	switch {
	case setting == UseAll && action == Balance.String():
		return fmt.Sprintf("no endpoint passes its check, so those that fail are used: %d", len(f.Outside.Pool.Targets)), UseAll
	case setting == RefuseAll && why.unusable[Down] > 0:
		return why.String(), RefuseAll
	case action == Balance.String() && port != nil && Peers{s, FamilyOf(f.Key.Addr), port}.failedUse() == useReturning:
		return "endpoints pass their check again, and those that failed with them are used while they may follow", ""
	}
	return why.String(), ""
}
