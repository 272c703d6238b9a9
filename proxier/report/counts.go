package report

import (
	"cmp"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Counts say how many services and endpoints are how, over all families: each service once,
// for its worst frontend, where a Summary counts the frontends.
type Counts struct {
	Services  map[string]int // by the worst action of their frontends, of ServiceActions
	Endpoints map[string]int // by state, of EndpointStates; one of several services counts for each

	// Services no endpoint of which passes its check, in a family, by all_failed of that: of AllFailedSettings.
	AllFailed map[string]int

	// Services in a family whose policy is local, and that have endpoints for that kind of
	// traffic, but none on this node.
	NoLocal map[policy.Family]NoLocal

	Warnings int // of services, but not Doubts

	Seen    ChangeCounts // since the start
	Pending ChangeCounts // not in the kernel yet

	Named Named
}

// NoLocal are numbers of services, by the traffic that finds no endpoint on this node.
type NoLocal struct{ Internal, External int }

// Actions of services without frontends.
const (
	noFrontend      = "none"
	disabledService = "disabled" // by its file
)

// ServiceActions returns what becomes of the connections to a service, from the worst on: it
// counts once, for the worst of its frontends.
func ServiceActions() []string {
	return []string{unservedWhole, policy.Reject.String(), unservedInPart, policy.Drop.String(), pending, policy.Balance.String(), noFrontend, disabledService}
}

// AllFailedSettings returns what all_failed of files can be.
func AllFailedSettings() []string { return []string{policy.UseAll, policy.RefuseAll} }

// worse has the place of each of ServiceActions.
var worse = func() map[string]int {
	at := make(map[string]int)
	for i, a := range ServiceActions() {
		at[a] = i
	}
	return at
}()

// CountsOf counts what StatusOf lists, and names at most so many services, see Named. It goes through all endpoints. What it
// named before makes that faster; the zero Named does, too.
func CountsOf(s *Snapshot, named int, before Named) Counts {
	c := Counts{Services: make(map[string]int), Endpoints: make(map[string]int), AllFailed: make(map[string]int), NoLocal: make(map[policy.Family]NoLocal), Seen: s.Seen, Pending: s.Pending}
	list := used(s, nil)
	var states StateCounts
	names := newNaming(list, named, before)
	for i := range list {
		s := &list[i]
		action, allFail := s.action(), s.AllFail()
		c.Services[action]++
		s.countNoLocal(c.NoLocal)
		for _, r := range s.families {
			if r.Resolved != nil {
				c.Warnings += len(r.Warnings)
			}
		}
		if allFail != "" {
			c.AllFailed[allFail]++
		}
		var own StateCounts
		tiers := s.TiersInUse()
		for j := range s.Endpoints {
			own[s.Shown(&s.Endpoints[j], tiers)]++
		}
		for i, n := range own {
			states[i] += n
		}
		names.add(s, own, problemOf(action, allFail))
	}
	c.Named = names.end(len(list))
	for i, n := range states {
		c.Endpoints[policy.EndpointStates()[i]] = n
	}
	return c
}

// action returns the worst action of the frontends.
func (u *usedService) action() string {
	worst := noFrontend
	if u.Disabled {
		worst = disabledService
	}
	for _, r := range u.families {
		for _, f := range r.AllFrontends() {
			if a, _ := r.action(f); worse[a] < worse[worst] {
				worst = a
			}
		}
	}
	return worst
}

func (u *usedService) countNoLocal(counts map[policy.Family]NoLocal) {
	for _, r := range u.families {
		n := counts[r.Family.Family]
		var internal, external bool
		for _, f := range r.AllFrontends() {
			if f.Outside.Action == policy.Drop { // except for a local policy, it would balance or reject
				internal = internal || f.Key.Kind == policy.VIP
				external = external || f.Key.Kind != policy.VIP
			}
		}
		n.Internal += toInt(internal)
		n.External += toInt(external)
		counts[r.Family.Family] = n
	}
}

// ChangeCountsOf counts what changed of one service.
func ChangeCountsOf(tr claims.Transition) ChangeCounts {
	if tr.Old == nil || tr.New == nil {
		s := cmp.Or(tr.New, tr.Old)
		return ChangeCounts{1, toInt(s != nil && len(s.Endpoints) > 0)}
	}
	without := *tr.New
	without.Endpoints = tr.Old.Endpoints
	all := *tr.Old
	all.Endpoints = tr.New.Endpoints
	return ChangeCounts{toInt(!tr.Old.Equal(&without)), toInt(!tr.Old.Equal(&all))}
}
