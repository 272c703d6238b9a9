package report

import (
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Filter says which services are meant. The zero Filter means all.
type Filter struct {
	Match func(*source.Service) bool // nil: all
	State string                     // of FilterStates; empty: any
}

// Troubled is the State of a Filter that means services with an address that does not serve as it should, or with an
// endpoint that fails its check.
const Troubled = "trouble"

// FilterStates returns what State of a Filter can be: Troubled, what becomes of the connections to a service, by the worst
// of its addresses, and the states of endpoints.
func FilterStates() []string {
	list := []string{Troubled}
	for _, s := range slices.Concat(ServiceActions(), policy.EndpointStates()) {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// Find returns the names of the services that a Filter means, in order. It costs one look at each of their endpoints and
// addresses, and none where State is empty.
func Find(s *Snapshot, f Filter) []source.Key {
	list := used(s, f.Match)
	keys := make([]source.Key, 0, len(list))
	for i := range list {
		if list[i].is(f.State) {
			keys = append(keys, list[i].Key)
		}
	}
	slices.SortFunc(keys, source.Key.Compare)
	return keys
}

// is reports whether a service, or one of its endpoints, has a state of a Filter.
func (u *usedService) is(state string) bool {
	switch {
	case state == "" || state == u.action():
		return true
	case state == Troubled:
		odd := oddService{usedService: u}
		if odd.count(make(map[string]int)); len(odd.idle) > 0 {
			return true
		}
		state = policy.Down.String()
	}
	tiers := u.TiersInUse()
	for i := range u.Endpoints {
		if u.Shown(&u.Endpoints[i], tiers).String() == state {
			return true
		}
	}
	return false
}
