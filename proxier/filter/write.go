package filter

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/looks"
)

// write writes a difference without creating or destroying sets. It does not update the
// mirror, but clears it on failure.
func (k *Kernel) write(ctx context.Context, d *difference) error {
	err := k.writeAll(ctx, d)
	if err != nil {
		k.mirror.forget()
	}
	return err
}

func (k *Kernel) writeAll(ctx context.Context, d *difference) error {
	for _, name := range k.fillOrder(d.gained) {
		if err := k.add(ctx, name, d.gained[name]); err != nil {
			return err
		}
	}
	if err := k.restore(ctx, k.tool, &d.script); err != nil {
		return err
	}
	for _, name := range slices.Backward(k.fillOrder(d.lost)) {
		if err := k.sets.Delete(ctx, name, d.lost[name]); err != nil {
			return err
		}
	}
	return nil
}

// fillOrder returns the names of sets in the order to fill them. Frontends are restricted when their
// source ranges are there, and not after those have gone, or the sources within were dropped meanwhile.
func (k *Kernel) fillOrder(sets map[string][]ipset.Entry) []string {
	names, last := slices.Sorted(maps.Keys(sets)), k.words.Set(layout.FirewalledSet)
	if i, has := slices.BinarySearch(names, last); has {
		names = append(slices.Delete(names, i, i+1), last)
	}
	return names
}

// Apply writes the changes of c since the last Resync or Apply, without reading the kernel.
func (k *Kernel) Apply(ctx context.Context, ch *layout.Changes, c layout.Desired) error {
	d := &difference{gained: ch.Gained, lost: ch.Lost, tool: xtables.Base(k.tool.IPv6), referenced: map[chainID]bool{}}
	fresh := map[string]xtables.Sum{} // by name of the chain, in table nat
	if ch.All {
		d.compareChains(k.mirror.chains, c.Chains, func(id chainID) bool { return k.mirror.referenced[id] })
	} else {
		d.compareChanged(ch, &k.mirror, fresh)
	}
	k.mirror.begin(d.touches(k.words.Set(layout.GrownSet)))
	if err := k.write(ctx, d); err != nil {
		return err
	}
	k.mirror.end(func() { k.mirror.apply(d, fresh) })
	return nil
}

// compareChanged notes how to change the chains of ch, and the sums of those to write in fresh.
func (d *difference) compareChanged(ch *layout.Changes, m *mirror, fresh map[string]xtables.Sum) {
	for name, rules := range ch.Chains {
		was, exists := m.chains["nat"][name]
		switch sum := xtables.SumOf(rules); {
		case rules == nil && exists && !m.referenced[chainID{"nat", name}]:
			d.script.Remove("nat", name)
		case rules != nil && (!exists || was != sum):
			d.script.Set("nat", name, rules)
			fresh[name] = sum
		}
	}
}

// touches returns the chains and sets that d changes. A full set is first filled under another name, grown.
func (d *difference) touches(grown string) *looks.Objects[object] {
	t := &looks.Objects[object]{}
	d.script.Chains(func(table, name string) { t.Add(object{chainEdit, table, name}) })
	for _, sets := range []map[string][]ipset.Entry{d.gained, d.lost} {
		for name := range sets {
			t.Add(setObject(name))
			t.Add(setObject(grown))
		}
	}
	return t
}

// apply updates the mirror with a difference that was written. The chains are those of
// d.want or, if that is nil, the previous ones and fresh.
func (m *mirror) apply(d *difference, fresh map[string]xtables.Sum) {
	if d.want != nil {
		m.chains, m.referenced = d.want, d.referenced
	} else {
		d.script.Removed(func(table, name string) { delete(m.chains[table], name) })
		for name, sum := range fresh {
			m.chains["nat"][name] = sum
			delete(m.referenced, chainID{"nat", name})
		}
	}
	for name, entries := range d.gained {
		t := m.sets[name]
		for _, e := range entries {
			t.add(e)
		}
		m.sets[name] = t
	}
	for name, entries := range d.lost {
		t := m.sets[name]
		for _, e := range entries {
			t.remove(e)
		}
		m.sets[name] = t
	}
}

// add adds members to a set, and enlarges it if they do not fit.
func (k *Kernel) add(ctx context.Context, name string, entries []ipset.Entry) error {
	err := k.sets.Add(ctx, name, entries)
	if !errors.Is(err, ipset.ErrFull) {
		return err
	}
	have, err := k.sets.List(ctx, name)
	if err != nil {
		return err
	}
	next := have.Set
	next.Name = k.words.Set(layout.GrownSet)
	next.MaxElem = max(2*have.MaxElem, setSize(len(have.Entries)+len(entries)))
	if err := k.sets.Destroy(ctx, next.Name); err != nil { // left by a run that was killed here
		return err
	}
	if err := k.sets.Create(ctx, next); err != nil {
		return err
	}
	if err := k.sets.Add(ctx, next.Name, append(have.Entries, entries...)); err != nil {
		return err
	}
	if err := k.sets.Swap(ctx, name, next.Name); err != nil {
		return err
	}
	return k.sets.Destroy(ctx, next.Name)
}

// busyFor is how long a set may stay in use after the last rule with it was removed:
// nf_tables frees rules asynchronously.
const busyFor = 5 * time.Second

func (k *Kernel) destroy(ctx context.Context, name string) error {
	return k.destroyWithin(ctx, name, busyFor)
}

func (k *Kernel) destroyWithin(ctx context.Context, name string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		err := k.sets.Destroy(ctx, name)
		if !errors.Is(err, ipset.ErrBusy) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// destroyObsolete destroys obsolete sets. One that a foreign rule uses stays, empty, and
// is desired to be so until the next resync, which tries again.
func (k *Kernel) destroyObsolete(ctx context.Context, d *difference) error {
	for _, name := range d.obsolete {
		timeout := busyFor
		if k.inUse[name] {
			timeout = 0
		}
		err := k.destroyWithin(ctx, name, timeout)
		switch {
		case errors.Is(err, ipset.ErrBusy) && ctx.Err() == nil:
			d.sets[name] = layout.Members{}
			err = k.emptyInUse(ctx, name)
		case err == nil:
			delete(k.inUse, name)
		}
		if err != nil {
			return err
		}
		proxier.Progressed(ctx)
	}
	return nil
}

// emptyInUse empties a set that cannot be destroyed, and logs that once.
func (k *Kernel) emptyInUse(ctx context.Context, name string) error {
	if !k.inUse[name] {
		k.log.Warn("an obsolete set stays, empty: a foreign rule uses it", "set", name)
		k.inUse[name] = true
	}
	return k.sets.Flush(ctx, name)
}

func (k *Kernel) destroyAll(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := k.destroy(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) makeSets(ctx context.Context, sets []ipset.Set) error {
	for _, s := range sets {
		if err := k.sets.Create(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// warnReferenced logs that a chain cannot be removed yet.
func (k *Kernel) warnReferenced(id chainID, by []string) {
	k.log.Warn("an obsolete chain stays, empty: foreign rules jump to it",
		"tool", k.Tool(), "table", id.table, "chain", id.name, "led_to_by", strings.Join(by, ", "))
}

func (k *Kernel) warnRemaining(left []string) {
	for _, l := range left {
		k.log.Warn("an obsolete chain stays, empty: foreign rules jump to it", "what", l)
	}
}
