package filter

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one thing exactly and is to hold
// another, each of its State. It needs no kernel.
func Compare(before Desired, had *policy.State, after Desired, st *policy.State) []proxier.Change {
	v6 := st.Family == policy.IPv6
	h := &Actual{tables: map[string]*xtables.Table{}, sets: map[string]*ipset.Listing{}}
	for _, jumps := range [][]Jump{before.Jumps(), after.Jumps()} {
		for _, j := range jumps {
			h.table(j.Table).Policies[j.Chain] = ""
		}
	}
	for _, j := range before.Jumps() {
		tab := h.table(j.Table)
		tab.Jumps[j.Chain] = append(tab.Jumps[j.Chain], j.Rule)
	}
	for _, name := range after.Tables() {
		h.table(name)
	}
	before.Chains(func(table, name string, rules []byte) { h.table(table).Chains[name] = xtables.SumOf(rules) })
	for name, m := range before.Sets(had) {
		h.sets[name] = &ipset.Listing{Set: ipset.Set{Name: name, Type: m.Type, IPv6: v6}, Entries: slices.Collect(maps.Keys(m.Entries))}
	}
	k := &Kernel{tool: &xtables.Tool{IPv6: v6}}
	return k.compare(h, after, st).changes()
}

// table returns a table, which it makes if there is none.
func (h *Actual) table(name string) *xtables.Table {
	if h.tables[name] == nil {
		h.tables[name] = xtables.NewTable()
	}
	return h.tables[name]
}
