package iptables

import (
	"context"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Objects returns what there should be for a State, which holds one frontend, and whether it is there.
func Objects(ctx context.Context, st *policy.State) ([]proxier.Object, error) {
	return filter.Objects(ctx, layout.NewRules(st.Family), st)
}
