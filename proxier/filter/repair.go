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

// Repair rewrites what looks have found to differ, and nothing else. r and st are
// those of the last Apply.
func (k *Kernel) Repair(ctx context.Context, r *layout.Rules, st *policy.State) (err error) {
	dmg := k.mirror.takeDamage()
	if len(dmg.Some) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			k.mirror.forget()
		}
	}()
	d, err := k.repairs(ctx, &dmg, r, st)
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
	return k.repair(ctx, &dmg, d, r)
}

func (k *Kernel) repair(ctx context.Context, dmg *looks.Objects[object], d *difference, r *layout.Rules) error {
	k.keep.hold(ctx)
	err := k.write(ctx, d)
	if err == nil {
		err = k.sets.destroyObsolete(ctx, d)
	}
	if err != nil {
		return err
	}
	k.order.movedAhead(d.passed, k.Tool(), k.log)
	k.mirror.end(func() {
		for _, set := range ofKind(dmg, setEdit) {
			delete(k.mirror.sets, set.name)
		}
		k.mirror.apply(d)
		k.mirror.jumps = r.Jumps()
	})
	return nil
}

// repairs returns the difference that repairs dmg, as far as the kernel still has it.
func (k *Kernel) repairs(ctx context.Context, dmg *looks.Objects[object], r *layout.Rules, st *policy.State) (*difference, error) {
	d := &difference{tool: xtables.Base(k.tool.IPv6), want: sums{}}
	d.repairChains(dmg, &k.mirror, r)
	if err := k.repairJumps(ctx, dmg, d, r.Jumps()); err != nil {
		return nil, err
	}
	have := map[string]*ipset.Listing{}
	for _, set := range ofKind(dmg, setEdit) {
		l, err := k.sets.get(ctx, set.name)
		if err != nil {
			return nil, err
		}
		if l != nil {
			have[set.name] = l
		}
	}
	want := r.Sets(st)
	maps.DeleteFunc(want, func(name string, _ layout.Members) bool { return !dmg.Has(setObject(name)) })
	d.compareSets(have, want, k.tool.IPv6)
	return d, nil
}

// repairJumps notes how to change the built-in chains that dmg names, as they are now.
func (k *Kernel) repairJumps(ctx context.Context, dmg *looks.Objects[object], d *difference, jumps []layout.Jump) error {
	tables := map[string]*xtables.Table{}
	for _, id := range ofKind(dmg, jumpsEdit) {
		have, err := k.tool.ReadChains(ctx, id.table, []string{id.name}, layout.Prefix)
		if err != nil {
			return err
		}
		if tables[id.table] == nil {
			tables[id.table] = xtables.NewTable()
		}
		tables[id.table].Merge(have)
	}
	d.compareJumps(tables, jumps, &k.order)
	return nil
}
