package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Plan returns what Resync would change. It sets r to the rules of st.
func (k *Kernel) Plan(ctx context.Context, r *layout.Rules, st *policy.State) ([]proxier.Change, error) {
	h, err := k.ReadFor(ctx, r, st)
	if err != nil {
		return nil, err
	}
	list := compare(h, r, st, &k.order).changes()
	for _, tool := range k.stale {
		tables, err := readAll(ctx, tool)
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return nil, err
		}
		list = append(list, purged(tool, tables)...)
	}
	if there, err := nft.Exists(k.keep.table()); err == nil && !there && !k.keep.failed.Load() {
		list = append(list, proxier.Change{Op: "add", Object: "table inet " + k.keep.table().Name})
	}
	return list, nil
}

// purged returns what is removed of the variant that is not in use.
func purged(tool *xtables.Tool, tables map[string]*xtables.Table) []proxier.Change {
	d := &difference{tool: tool.String(), script: xtables.Script{}, want: sums{}, referenced: map[chainID]bool{}}
	for name, tab := range tables {
		d.want[name] = map[string]xtables.Sum{}
		for _, chain := range slices.Sorted(maps.Keys(tab.Chains)) {
			d.removeOrEmpty(chainID{name, chain}, tab.Chains[chain], func(id chainID) bool { return len(tab.ReferencedBy(id.name)) > 0 })
		}
	}
	d.compareJumps(tables, nil, &order{})
	return d.changes()
}

// Resync makes the kernel, which holds h, hold c. It removes our chains of the other
// variant last, so that packets are served all the time.
func (k *Kernel) Resync(ctx context.Context, h *layout.Actual, c layout.Desired, st *policy.State) error {
	k.mirror.forget()
	k.keep.hold(ctx)
	d := compare(h, c, st, &k.order)
	if len(d.mismatched) > 0 {
		if err := k.removeMismatched(ctx, d.mismatched); err != nil {
			return err
		}
		var err error
		if h, err = k.Read(ctx, c); err != nil {
			return err
		}
		d = compare(h, c, st, &k.order)
	}
	if err := k.writeMarked(ctx, h, d, st); err != nil {
		return err
	}
	if err := k.confirm(); err != nil {
		return err
	}
	k.order.movedAhead(d.passed, k.Tool(), k.log)
	if err := errors.Join(k.purgeStale(ctx), k.sets.destroyObsolete(ctx, d)); err != nil {
		return err
	}
	for id := range d.referenced {
		k.log.Warn("keeping an obsolete chain, emptied, because foreign rules jump to it", "tool", k.Tool(),
			"table", id.table, "chain", id.name, "led_to_by", strings.Join(h.Tables[id.table].ReferencedBy(id.name), ", "))
	}
	k.mirror.end(func() {
		m := &k.mirror
		m.chains, m.sets, m.jumps, m.referenced = d.want, map[string]setSum{}, c.Jumps(), map[chainID]bool{}
		m.apply(d)
	})
	return nil
}

// confirm returns an error if the legacy variant does not have what was written. Of the nft variant each
// writing is confirmed, see xtables.ErrNothingWritten.
func (f *family) confirm() error {
	if !f.WritesWholeTables() {
		return nil
	}
	switch there, err := f.tool.ChainExists("nat", layout.Services); {
	case err != nil:
		f.log.Debug("what was written cannot be confirmed", "tool", f.Tool(), "err", err) // the next look compares all of it
	case !there:
		return fmt.Errorf("chain %s of table nat is missing: %s-restore: %w", layout.Services, f.Tool(), xtables.ErrNothingWritten)
	}
	return nil
}

// removeMismatched removes sets with our names but other properties. Rules that use
// them must be removed first, so all of ours are.
func (k *Kernel) removeMismatched(ctx context.Context, names []string) error {
	left, err := k.purge(ctx, k.tool)
	if err != nil {
		return err
	}
	k.warnRemaining(left)
	for _, name := range names {
		if err := k.sets.destroyWithin(ctx, name, busyFor); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) purgeStale(ctx context.Context) error {
	for len(k.stale) > 0 {
		left, err := k.purge(ctx, k.stale[0])
		if err != nil {
			return err
		}
		k.warnRemaining(left)
		k.stale = k.stale[1:]
	}
	return nil
}
