package filter

import (
	"context"
	"maps"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Repair rewrites what looks have found to differ, and nothing else: to read all tables of 10,000
// services takes ten times as long. r and st are those of the last Apply.
func (k *Kernel) Repair(ctx context.Context, r *layout.Rules, st *policy.State) (err error) {
	damage := k.mirror.takeDamage()
	if len(damage.Some) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			k.mirror.forget()
		}
	}()
	d, err := k.repairs(ctx, &damage, r, st)
	if err != nil {
		return err
	}
	if len(d.mismatched) > 0 { // all rules must be removed before these
		h, err := k.Read(ctx, r)
		if err != nil {
			return err
		}
		r.Observe(h)
		return k.Resync(ctx, h, r, st)
	}
	k.keep.hold(ctx)
	if err := k.write(ctx, d); err != nil {
		return err
	}
	if err := k.sets.destroyObsolete(ctx, d); err != nil {
		return err
	}
	k.order.movedAhead(d.passed, k.Tool(), k.log)
	k.mirror.end(func(m *mirror) {
		maps.DeleteFunc(m.sets, func(name string, _ uint64) bool { return damage.Has(setObject(name)) })
		m.apply(d)
		m.jumps = jumpsOf(r)
	})
	return nil
}

// repairs returns the difference that repairs damage, as far as the kernel still has it.
func (k *Kernel) repairs(ctx context.Context, damage *looks.Objects[object], r *layout.Rules, st *policy.State) (*difference, error) {
	d := &difference{}
	d.repairChains(damage, &k.mirror, r)
	tables, sets := map[string]*xtables.Table{}, map[string]*ipset.Listing{}
	for o := range damage.Some {
		switch o.kind {
		case jumpsKind:
			have, err := k.tool.ReadChains(ctx, o.table, []string{o.name}, layout.Prefix)
			if err != nil {
				return nil, err
			}
			if tables[o.table] == nil {
				tables[o.table] = xtables.NewTable()
			}
			tables[o.table].Merge(have)
		case setKind:
			l, err := k.sets.get(ctx, o.name)
			if err != nil {
				return nil, err
			}
			if l != nil {
				sets[o.name] = l
			}
		}
	}
	d.compareJumps(tables, jumpsOf(r), &k.order)
	want := r.Sets(st)
	maps.DeleteFunc(want, func(name string, _ layout.Members) bool { return !damage.Has(setObject(name)) })
	d.compareSets(sets, want, k.tool.IPv6)
	return d, nil
}

// repairChains notes the chains that damage names and those that differ from the mirror.
func (d *difference) repairChains(damage *looks.Objects[object], m *mirror, r *layout.Rules) {
	d.want = map[string]map[string]xtables.Sum{}
	for table := range m.chains {
		d.want[table] = map[string]xtables.Sum{}
	}
	wanted := map[object]bool{}
	r.Chains(func(table, name string, rules []byte) {
		id, sum := chainObject(table, name), xtables.SumOf(rules)
		was, exists := m.chains[table][name]
		wanted[id] = damage.Has(id)
		if wanted[id] || !exists || was != sum {
			d.script.Set(table, name, rules)
			d.want[table][name] = sum
		}
	})
	for id := range damage.Some {
		if id.kind == chainKind && !wanted[id] {
			d.script.Remove(id.table, id.name)
		}
	}
}
