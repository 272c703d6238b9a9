package iptables

import (
	"fmt"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one State exactly, and is to hold
// another of the same family. It needs no kernel.
func Compare(before, after *policy.State) ([]proxier.Change, error) {
	had, rules := layout.NewRules(after.Family), layout.NewRules(after.Family)
	for r, st := range map[*layout.Rules]*policy.State{had: before, rules: after} {
		if err := r.Reset(st); err != nil {
			return nil, fmt.Errorf("iptables, %s: %w", st.Family, err)
		}
	}
	return filter.Compare(had, before, rules, after), nil
}
