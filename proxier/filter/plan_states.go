package filter

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one thing exactly and is to hold
// another, each of its State. It needs no kernel.
func Compare(before layout.Desired, had *policy.State, after layout.Desired, st *policy.State) []proxier.Change {
	v6 := st.Family == policy.IPv6
	h := &layout.Actual{Tables: map[string]*xtables.Table{}, Sets: map[string]*ipset.Listing{}}
	for _, jumps := range [][]layout.Jump{before.Jumps(), after.Jumps()} {
		for _, j := range jumps {
			tableOf(h, j.Table).Policies[j.Chain] = ""
		}
	}
	for _, j := range before.Jumps() {
		tab := tableOf(h, j.Table)
		tab.Jumps[j.Chain] = append(tab.Jumps[j.Chain], j.Rule)
	}
	for _, name := range after.Tables() {
		tableOf(h, name)
	}
	before.Chains(func(table, name string, rules []byte) { tableOf(h, table).Chains[name] = xtables.SumOf(rules) })
	for name, m := range before.Sets(had) {
		h.Sets[name] = &ipset.Listing{Set: ipset.Set{Name: name, Type: m.Type, IPv6: v6}, Entries: slices.Collect(maps.Keys(m.Entries))}
	}
	k := &Kernel{tool: &xtables.Tool{IPv6: v6}}
	return k.compare(h, after, st).changes()
}

// tableOf returns a table of h, which it makes if there is none.
func tableOf(h *layout.Actual, name string) *xtables.Table {
	if h.Tables[name] == nil {
		h.Tables[name] = xtables.NewTable()
	}
	return h.Tables[name]
}
