package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
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
	have := &layout.Actual{Tables: tables}
	for _, table := range slices.Sorted(maps.Keys(wanted)) {
		tab := tableOf(have, table)
		for _, j := range r.Jumps() {
			if j.Table == table {
				target := j.Rule[strings.LastIndexByte(j.Rule, ' ')+1:]
				name := fmt.Sprintf("jump %s %s to %s", table, j.Chain, target)
				list = append(list, proxier.Object{Name: name, Present: slices.Contains(tab.Jumps[j.Chain], j.Rule)})
			}
		}
		for _, name := range slices.Sorted(slices.Values(wanted[table])) {
			_, present := tab.Chains[name]
			list = append(list, proxier.Object{Name: "chain " + table + " " + name, Present: present})
		}
	}
	return list, nil
}

// setObjects names the sets that the State needs, not those of the host, or the members that they lack.
func setObjects(ctx context.Context, r *layout.Rules, st *policy.State) (list []proxier.Object, err error) {
	wanted := r.Sets(st)
	conn, err := ipset.Dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		lacks := wanted[name].Entries
		if len(lacks) == 0 {
			continue
		}
		have, err := conn.List(ctx, name)
		if err != nil && !errors.Is(err, ipset.ErrNotExist) {
			return nil, err
		}
		if err == nil {
			for _, e := range have.Entries {
				delete(lacks, e)
			}
		}
		for e := range lacks {
			list = append(list, proxier.Object{Name: "member " + name + " " + e.String()})
		}
		if len(lacks) == 0 {
			list = append(list, proxier.Object{Name: "set " + name, Present: true})
		}
	}
	return list, nil
}
