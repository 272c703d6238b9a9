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
	changes, err := filter.Compare(layout.NewRules(after.Family), before, layout.NewRules(after.Family), after)
	if err != nil {
		return nil, fmt.Errorf("iptables, %s: %w", after.Family, err)
	}
	return changes, nil
}
