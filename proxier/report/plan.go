package report

import (
	"reflect"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Plan is what a sync would change now.
type Plan struct {
	Edits    []claims.Transition // services that are not in the kernel yet as sources have them, in order of their names
	Families []*FamilyPlan       // in order of the IP version
}

// A FamilyPlan is what a Sync of one family would change now.
type FamilyPlan struct {
	Family   policy.Family
	Objects  []proxier.Change       // of the kernel
	Services []policy.ServiceChange // that the kernel does not hold yet, in order of their names
	Err      error                  // why Objects are not known

	Before, After map[source.Key]*policy.Resolved // all services
	Host          policy.Host
	Node          *policy.Node
	Fresh         bool // nobody knows at this sync what was there before it
}

// ComparePlan returns what leads from one State to another, which node belongs to, without
// Objects. fresh: the sync is the first of a process, which does not know the former State.
func ComparePlan(before, after *policy.State, node *policy.Node, fresh bool) *FamilyPlan {
	p := &FamilyPlan{
		Family: after.Family, Before: before.Services, After: after.Services,
		Host: after.Host, Node: node, Fresh: fresh,
	}
	ch := policy.NewChanges()
	for key, r := range after.Services {
		if old := before.Services[key]; !reflect.DeepEqual(old, r) {
			ch.Note(key, old, r)
		}
	}
	for key, old := range before.Services {
		if after.Services[key] == nil {
			ch.Note(key, old, nil)
		}
	}
	p.Services = ch.Sorted()
	return p
}
