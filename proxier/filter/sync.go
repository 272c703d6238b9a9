package filter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Plan returns what Resync would change. It sets r to the rules of st.
func (k *Kernel) Plan(ctx context.Context, r *layout.Rules, st *policy.State) ([]proxier.Change, error) {
	h, err := k.ReadFor(ctx, r, st)
	if err != nil {
		return nil, err
	}
	list := compare(h, r, st, &k.order, true).changes
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
	d := &difference{plan: true, tool: tool.String()}
	d.compareChains(chainsOf(tables), func(layout.Emit) {}, referencedIn(tables))
	d.compareJumps(tables, nil, &order{})
	return d.changes
}

// Resync makes the kernel, which holds h, hold r. It removes our chains of the other
// variant last, so that packets are served all the time.
func (k *Kernel) Resync(ctx context.Context, h *layout.Actual, r *layout.Rules, st *policy.State) error {
	k.mirror.forget()
	k.keep.hold(ctx)
	d := compare(h, r, st, &k.order, false)
	if len(d.mismatched) > 0 {
		if err := k.removeMismatched(ctx, d.mismatched); err != nil {
			return err
		}
		var err error
		if h, err = k.Read(ctx, r); err != nil {
			return err
		}
		d = compare(h, r, st, &k.order, false)
	}
	if err := k.writeMarked(ctx, h, d, st); err != nil {
		return err
	}
	if err := k.confirm(&d.script); err != nil {
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
	k.mirror.end(func(m *mirror) {
		m.chains, m.jumps, m.referenced, m.sets = d.want, jumpsOf(r), map[object]bool{}, map[string]uint64{}
		m.apply(d)
	})
	return nil
}

// confirm returns an error if the legacy variant does not have what a script wrote. Of the nft variant each
// writing is confirmed, see xtables.ErrNothingWritten.
func (f *family) confirm(s *xtables.Script) error {
	if !f.WritesWholeTables() || s.Empty() {
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
	if err := k.purgeOrWarn(ctx, k.tool); err != nil {
		return err
	}
	for _, name := range names {
		if err := k.sets.destroyWithin(ctx, name, busyFor); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) purgeStale(ctx context.Context) error {
	for ; len(k.stale) > 0; k.stale = k.stale[1:] {
		if err := k.purgeOrWarn(ctx, k.stale[0]); err != nil {
			return err
		}
	}
	return nil
}

// purgeOrWarn removes all our chains, and logs which cannot be removed yet.
func (f *family) purgeOrWarn(ctx context.Context, tool *xtables.Tool) error {
	left, err := f.purge(ctx, tool)
	if err != nil {
		return err
	}
	for _, l := range left {
		f.log.Warn("keeping an obsolete chain, emptied, because foreign rules jump to it", "what", l)
	}
	return nil
}

// Apply writes the changes of r since the last Resync or Apply, without reading the kernel.
func (k *Kernel) Apply(ctx context.Context, ch *layout.Changes, r *layout.Rules) error {
	d := &difference{gained: ch.Gained, lost: ch.Lost}
	if ch.All {
		d.compareChains(k.mirror.chains, r.Chains, func(id object) bool { return k.mirror.referenced[id] })
	} else {
		d.compareChanged(ch, &k.mirror)
	}
	k.mirror.begin(d.touches(k.words.Set(layout.GrownSet)))
	if err := k.write(ctx, d); err != nil {
		return err
	}
	k.mirror.end(func(m *mirror) { m.apply(d) })
	return nil
}

// CanApply reports whether Apply can be called: the last Resync or Apply succeeded.
func (k *Kernel) CanApply() bool { return k.mirror.chains != nil }

// write writes a difference without destroying sets. It does not update the mirror, but
// clears it on failure.
func (k *Kernel) write(ctx context.Context, d *difference) (err error) {
	defer func() {
		if err != nil {
			k.mirror.forget()
		}
	}()
	for _, s := range d.create {
		if err := k.sets.Create(ctx, s); err != nil {
			return err
		}
	}
	for _, name := range k.sets.fillOrder(d.gained) {
		if err := k.sets.fill(ctx, name, d.gained[name]); err != nil {
			return err
		}
	}
	if err := k.restore(ctx, k.tool, &d.script); err != nil {
		return err
	}
	for _, name := range slices.Backward(k.sets.fillOrder(d.lost)) {
		if err := k.sets.Delete(ctx, name, d.lost[name]); err != nil {
			return err
		}
	}
	return nil
}

// writeMarked writes a difference. If SVCP-FORWARD accepted connections by another mark until now, from before masquerade_bit
// was changed, they get the new one before, and those that began meanwhile after. If this Kernel has written nothing yet and
// it accepted none, after a boot, in another mode, or as others have removed it, they may be of another mode, and get it after.
func (k *Kernel) writeMarked(ctx context.Context, h *layout.Actual, d *difference, st *policy.State) error {
	was := xtables.SumOf(nil)
	if tab := h.Tables["filter"]; tab != nil {
		if sum, exists := tab.Chains[layout.Forward]; exists {
			was = sum
		}
	}
	byNone := was == xtables.SumOf(nil)
	byOtherMark := !byNone && was != d.want["filter"][layout.Forward]
	if byOtherMark {
		if err := k.adoptOrWarn(ctx, st); err != nil {
			return err
		}
	}
	if err := k.write(ctx, d); err != nil {
		return err
	}
	first := !k.marked
	k.marked = true
	if byOtherMark || byNone && first {
		return k.adoptOrWarn(ctx, st)
	}
	return nil
}

// adoptOrWarn marks the connections that st's frontends have balanced. It continues if that
// fails, as on a kernel without nf_conntrack_netlink: the rules matter more than existing connections.
func (k *Kernel) adoptOrWarn(ctx context.Context, st *policy.State) error {
	ours := map[proxier.FrontendAddr]bool{}
	for at := range proxier.FrontendAddrs(&st.Host, maps.Values(st.Services)) {
		ours[at] = true
	}
	_, err := conntrack.Mark(ctx, k.tool.IPv6, st.Host.Mark(), func(c conntrack.Connection) bool {
		return c.Reply != c.Dst && ours[proxier.FrontendAddr{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst}]
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("marking existing connections for FORWARD: %w", err)
	if ctx.Err() != nil {
		return err
	}
	if !k.warnedUnmarked {
		k.log.Warn("cannot mark existing connections; a firewall may drop them", "tool", k.Tool(), "err", err)
		k.warnedUnmarked = true
	}
	return nil
}
