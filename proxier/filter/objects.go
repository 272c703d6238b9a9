package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Objects returns what the chains and sets of r should have for a State, which holds one
// frontend, and whether it is there. Chains are known by their names, and so are jumps.
// Chains between the root of the tree and the service depend on all other services, and
// are left out.
func Objects(ctx context.Context, r *layout.Rules, st *policy.State) ([]proxier.Object, error) {
	if err := r.Reset(st); err != nil {
		return nil, err
	}
	chains, err := chainObjects(ctx, r, st.Family)
	if err != nil {
		return nil, fmt.Errorf("looking for our chains: %w", err)
	}
	sets, err := setObjects(ctx, r, st)
	if err != nil {
		return nil, fmt.Errorf("looking for our sets: %w", err)
	}
	return append(chains, sets...), nil
}

func chainObjects(ctx context.Context, r *layout.Rules, fam policy.Family) (list []proxier.Object, err error) {
	choice, err := Choose(ctx, fam == policy.IPv6)
	if err != nil {
		return nil, err
	}
	wanted := map[string][]string{}
	r.Chains(func(table, chain string, _ []byte) { wanted[table] = append(wanted[table], chain) })
	tables, err := readAll(ctx, choice.Use)
	if err != nil {
		return nil, err
	}
	for _, table := range slices.Sorted(maps.Keys(wanted)) {
		have := tables[table]
		if have == nil {
			have = xtables.NewTable()
		}
		list = append(list, jumpObjects(r, table, have)...)
		for _, name := range slices.Sorted(slices.Values(wanted[table])) {
			_, present := have.Chains[name]
			list = append(list, proxier.Object{Name: "chain " + table + " " + name, Present: present})
		}
	}
	return list, nil
}

func jumpObjects(r *layout.Rules, table string, have *xtables.Table) (list []proxier.Object) {
	for _, j := range r.Jumps() {
		if j.Table == table {
			words := strings.Fields(j.Rule)
			name := fmt.Sprintf("jump %s %s to %s", table, j.Chain, words[len(words)-1])
			list = append(list, proxier.Object{Name: name, Present: slices.Contains(have.Jumps[j.Chain], j.Rule)})
		}
	}
	return list
}

// setObjects are the members that the State needs, not those of the host.
func setObjects(ctx context.Context, r *layout.Rules, st *policy.State) (list []proxier.Object, err error) {
	wanted := r.Sets(st)
	conn, err := ipset.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	names, err := conn.Names(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if len(wanted[name].Entries) == 0 {
			continue
		}
		members := map[ipset.Entry]bool{}
		if slices.Contains(names, name) {
			have, err := conn.List(ctx, name)
			if err != nil {
				return nil, err
			}
			for _, e := range have.Entries {
				members[e] = true
			}
		}
		list = append(list, memberObjects(name, wanted[name], members)...)
	}
	return list, nil
}

// memberObjects names a set, or the members that it lacks.
func memberObjects(name string, wanted layout.Members, have map[ipset.Entry]bool) (list []proxier.Object) {
	for e := range wanted.Entries {
		if !have[e] {
			list = append(list, proxier.Object{Name: "member " + name + " " + e.String()})
		}
	}
	if len(list) == 0 {
		list = append(list, proxier.Object{Name: "set " + name, Present: true})
	}
	return list
}
