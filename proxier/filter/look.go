package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Look compares the kernel with what the last successful sync left there, and
// reports whether something differs, for Repair. It runs beside all other methods,
// blocks none, and ignores what they have changed meanwhile.
func (k *Kernel) Look(ctx context.Context) (bool, error) {
	select {
	case k.looking <- struct{}{}:
		defer func() { <-k.looking }()
	case <-ctx.Done():
		return false, fmt.Errorf("waiting for another look: %w", context.Cause(ctx))
	}
	if !k.mirror.now().known {
		return false, nil
	}
	k.remakeKeepTable(ctx)
	if err := k.lookAtTables(ctx); err != nil {
		return false, fmt.Errorf("looking at the rules: %w", err)
	}
	if err := k.lookAtSets(ctx); err != nil {
		return false, fmt.Errorf("looking at the ip sets: %w", err)
	}
	if differ := k.mirror.differing(k.Tool()); len(differ) > 0 {
		k.log.Debug("a look found differences", "count", len(differ), "first", differ[:min(20, len(differ))])
		return true, nil
	}
	return false, nil
}

// Damaged reports whether there is something to Repair.
func (k *Kernel) Damaged() bool { return k.mirror.now().damaged }

// Reported reports whether Watch has reported what there is to Repair.
func (k *Kernel) Reported() bool { return k.mirror.now().reported }

// maxUnread is how many looks in a row may read no table because there were no events.
// Then one reads them anyway, in case the kernel or we missed something.
const maxUnread = 60

// lookAtTables reads all tables, unless none has changed since they were last read and
// no jumps are to be moved.
// What it ignored is left to the next look.
func (k *Kernel) lookAtTables(ctx context.Context) error {
	k.looksSinceRead++
	now := k.tableState()
	if k.unchanged(now) && k.looksSinceRead < maxUnread && !k.order.due() {
		return nil
	}
	unconfirmed, complete, err := k.readAndCompare(ctx, nil)
	if err == nil && len(unconfirmed.Some) > 0 {
		_, complete, err = k.readAndCompare(ctx, &unconfirmed)
	}
	if err == nil {
		k.looksSinceRead, k.lastState = 0, now
	}
	if !complete {
		k.lastState = tableState{}
		k.forceRead()
	}
	return err
}

// readAndCompare reads all tables, notes in the mirror what differs, and reports whether
// that is all. Where others write meanwhile, or we do, what differs counts only if it is
// among what a reading before found, which returned it as unconfirmed.
func (k *Kernel) readAndCompare(ctx context.Context, before *looks.Objects[object]) (unconfirmed looks.Objects[object], complete bool, err error) {
	t := k.mirror.beginLook()
	tables, once, err := readAtOnce(ctx, k.tool)
	if err != nil {
		k.mirror.endLook(t, nil)
		return unconfirmed, false, err
	}
	for name, tab := range tables {
		k.order.observe(name, tab)
		maps.DeleteFunc(tab.Chains, func(name string, _ xtables.Sum) bool { return strings.HasPrefix(name, layout.ProbePrefix) })
	}
	complete = k.mirror.endLook(t, func(d *looks.Objects[object]) {
		var found looks.Objects[object]
		k.mirror.compareTables(tables, t, &found, &k.order)
		switch {
		case once:
			d.Merge(&found)
		case before != nil:
			d.Merge(both(&found, before))
		}
		if !once {
			unconfirmed = found
		}
	})
	return unconfirmed, complete && len(unconfirmed.Some) == 0, nil
}

// both returns what two readings of the tables found.
func both(a, b *looks.Objects[object]) *looks.Objects[object] {
	list := &looks.Objects[object]{}
	for o := range a.Some {
		if b.Has(o) {
			list.Add(o)
		}
	}
	return list
}

// forceRead makes the next look read all tables of the nft variant. Any goroutine may call it.
func (k *Kernel) forceRead() {
	if k.events != nil {
		k.events.dirty.Store(true)
	}
}

// A tableState is the state of the tables of the legacy variant, which has no events,
// when they were read.
type tableState struct {
	content map[string]xtables.Sum // nil: unknown
	writes  int                    // of ours until then
}

// tableState returns the state of the tables with rules of ours.
func (k *Kernel) tableState() tableState {
	m := k.mirror.now()
	r := tableState{writes: m.writes}
	if k.events == nil {
		r.content = byTable(m.jumps, k.tool.ReadSum)
	}
	return r
}

// unchanged reports whether the tables are unchanged since they were last read.
func (k *Kernel) unchanged(now tableState) bool {
	if k.events != nil {
		return !k.events.mustRead()
	}
	was := k.lastState
	return len(now.content) > 0 && now.writes == was.writes && maps.Equal(now.content, was.content)
}

// lookAtSets lists the sets one by one, so that a sync that changes one does not make
// the look ignore the others.
func (k *Kernel) lookAtSets(ctx context.Context) error {
	t := k.mirror.beginLook()
	names, err := k.lookSets.Names(ctx)
	if err != nil {
		k.mirror.endLook(t, nil)
		return err
	}
	k.mirror.endLook(t, func(d *looks.Objects[object]) {
		for name := range k.mirror.sets {
			if o := setObject(name); !t.Has(o) && !slices.Contains(names, name) {
				d.Add(o)
			}
		}
	})
	for _, name := range names {
		if name == k.words.Set(layout.GrownSet) || strings.HasPrefix(name, layout.ProbePrefix) {
			continue // temporary; leftovers are removed by the next resync
		}
		if err := k.lookAtSet(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) lookAtSet(ctx context.Context, name string) error {
	t := k.mirror.beginLook()
	l, err := k.ourSet(ctx, k.lookSets, name)
	if err != nil || l == nil { // one removed since its name was listed is found missing by the next look
		k.mirror.endLook(t, nil)
		return err
	}
	have := sumOfSet(l.Entries)
	k.mirror.endLook(t, func(d *looks.Objects[object]) {
		if want, ours := k.mirror.sets[name]; !t.Has(setObject(name)) && (!ours || have != want) {
			d.Add(setObject(name))
		}
	})
	return nil
}

// Repair rewrites what looks have found to differ, and nothing else. r and st are
// those of the last Apply.
func (k *Kernel) Repair(ctx context.Context, r *layout.Rules, st *policy.State) error {
	dmg := k.mirror.takeDamage()
	if len(dmg.Some) == 0 {
		return nil
	}
	d, err := k.repairs(ctx, &dmg, r, st)
	if err != nil {
		k.mirror.forget()
		return err
	}
	if len(d.mismatched) > 0 { // all rules must be removed before these
		h, err := k.Read(ctx, r)
		if err != nil {
			k.mirror.forget()
			return err
		}
		r.Observe(h)
		return k.Resync(ctx, h, r, st)
	}
	return k.repair(ctx, &dmg, d, r)
}

func (k *Kernel) repair(ctx context.Context, dmg *looks.Objects[object], d *difference, r *layout.Rules) error {
	k.makeKeepTable(ctx)
	k.holdHooks()
	err := k.makeSets(ctx, d.create)
	if err == nil {
		err = k.writeAll(ctx, d)
	}
	if err == nil {
		err = k.destroyObsolete(ctx, d)
	}
	if err != nil {
		k.mirror.forget()
		return err
	}
	k.movedAhead(d)
	k.mirror.end(func() { k.mirror.repaired(dmg, d, r.Jumps()) })
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
		l, err := k.ourSet(ctx, k.sets, set.name)
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

// repairChains notes the chains that dmg names and those that differ from the mirror.
func (d *difference) repairChains(dmg *looks.Objects[object], m *mirror, r *layout.Rules) {
	for table := range m.chains {
		d.want[table] = map[string]xtables.Sum{}
	}
	done := map[chainID]bool{}
	r.Chains(func(table, name string, rules []byte) {
		id, sum := chainID{table, name}, xtables.SumOf(rules)
		if was, exists := m.chains[table][name]; dmg.Has(id.as(chainEdit)) || !exists || was != sum {
			d.script.Set(table, name, rules)
			d.want[table][name] = sum
		}
		done[id] = dmg.Has(id.as(chainEdit))
	})
	for _, id := range ofKind(dmg, chainEdit) {
		if !done[id] {
			d.script.Remove(id.table, id.name)
		}
	}
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

// repaired updates the mirror after a repair.
func (m *mirror) repaired(dmg *looks.Objects[object], d *difference, jumps []layout.Jump) {
	d.script.Removed(func(table, name string) {
		delete(m.chains[table], name)
		delete(m.referenced, chainID{table, name})
	})
	for table, chains := range d.want {
		maps.Copy(m.chains[table], chains)
	}
	for _, set := range ofKind(dmg, setEdit) {
		delete(m.sets, set.name)
	}
	for name, set := range d.sets {
		m.sets[name] = sumOfMembers(set)
	}
	m.jumps = jumps
}
