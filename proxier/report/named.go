package report

import (
	"cmp"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Named are the services that a Counts names. Their number is bounded, as metrics of each cost memory wherever they are kept.
type Named struct {
	Services []ServiceCounts // the first ones by name, the same ones each time, in no order
	LeftOut  int             // services that are not among them

	Problems []ServiceProblem // the worst ones, then by name
	More     map[string]int   // problems that are not among them, by Problem

	last source.Key // of Services, or one after it that is not the name of a service
}

// StateCounts are numbers of endpoints, by state.
type StateCounts [policy.Gone]int

// A ServiceCounts says how many endpoints of a service are in which state.
type ServiceCounts struct {
	*source.Service
	Endpoints StateCounts
}

// A ServiceProblem is a service that does not serve as it should.
type ServiceProblem struct {
	*source.Service
	Problem string // of ServiceProblems
}

// ServiceProblems returns what can be wrong with a service, from the worst on. A pending one is on its way.
func ServiceProblems() []string {
	return []string{unservedWhole, allFailed, policy.Reject.String(), unservedInPart, policy.Drop.String()}
}

// allFailed is the problem of a service no endpoint of which passes its check, whatever all_failed says.
const allFailed = "all failed"

// problemOf returns the problem of a service whose worst frontend has this action; empty: none.
func problemOf(action, allFail string) string {
	switch {
	case action != unservedWhole && allFail != "":
		return allFailed
	case action == unservedWhole, action == policy.Reject.String(), action == unservedInPart, action == policy.Drop.String():
		return action
	}
	return ""
}

// A naming chooses which services are named.
type naming struct {
	most  int
	last  source.Key // of the first ones by name
	named Named
}

// newNaming returns a naming of at most so many of the services.
func newNaming(list []usedService, most int, before Named) *naming {
	n := &naming{most: most, named: Named{More: make(map[string]int)}}
	if most > 0 && len(list) > 0 {
		n.last = lastOfFirst(list, most, before.last)
		n.named.Services = make([]ServiceCounts, 0, min(most, len(list)))
	}
	n.named.last = n.last
	return n
}

// lastOfFirst returns the last of so many services that are the first by name. A guess that is right makes it cheap: as a rule
// no service has come or gone.
func lastOfFirst(list []usedService, most int, guess source.Key) (last source.Key) {
	n := 0
	for i := range list {
		if list[i].Key.Compare(guess) <= 0 {
			n++
		}
	}
	if n == min(most, len(list)) { // at a guess that is not a name any more, the same services are named
		return guess
	}
	keys := make([]source.Key, len(list))
	for i := range list {
		keys[i] = list[i].Key
	}
	slices.SortFunc(keys, source.Key.Compare)
	return keys[min(most, len(keys))-1]
}

func (n *naming) add(u *usedService, endpoints StateCounts, problem string) {
	if n.most > 0 && u.Key.Compare(n.last) <= 0 {
		n.named.Services = append(n.named.Services, ServiceCounts{u.Service, endpoints})
	}
	if problem != "" {
		n.named.Problems = append(n.named.Problems, ServiceProblem{u.Service, problem})
	}
}

// end returns what is named of so many services.
func (n *naming) end(services int) Named {
	named := &n.named
	named.LeftOut = services - len(named.Services)
	if worst := ServiceProblems(); len(named.Problems) > 0 {
		slices.SortFunc(named.Problems, func(a, b ServiceProblem) int {
			return cmp.Or(cmp.Compare(slices.Index(worst, a.Problem), slices.Index(worst, b.Problem)), a.Key.Compare(b.Key))
		})
	}
	most := min(n.most, len(named.Problems))
	for _, p := range named.Problems[most:] {
		named.More[p.Problem]++
	}
	named.Problems = slices.Clone(named.Problems[:most])
	return *named
}
