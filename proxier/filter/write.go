package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

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

// Apply writes the changes of c since the last Resync or Apply, without reading the kernel.
func (k *Kernel) Apply(ctx context.Context, ch *layout.Changes, c layout.Desired) error {
	d := &difference{gained: ch.Gained, lost: ch.Lost, tool: xtables.Base(k.tool.IPv6), referenced: map[chainID]bool{}}
	if ch.All {
		d.compareChains(k.mirror.chains, c.Chains, func(id chainID) bool { return k.mirror.referenced[id] })
	} else {
		d.compareChanged(ch, &k.mirror)
	}
	k.mirror.begin(d.touches(k.words.Set(layout.GrownSet)))
	if err := k.write(ctx, d); err != nil {
		return err
	}
	k.mirror.end(func() { k.mirror.apply(d) })
	return nil
}

// CanApply reports whether Apply can be called: the last Resync or Apply succeeded.
func (k *Kernel) CanApply() bool { return k.mirror.chains != nil }

// A forwarding says by what SVCP-FORWARD accepts connections before a writing.
type forwarding uint8

const (
	asWanted    forwarding = iota
	byOtherMark            // from before masquerade_bit was changed
	byNone                 // there is none: after a boot, in another mode, or others have removed it
)

// forwarding returns by what SVCP-FORWARD accepts now. Connections that exist do not have the mark that it will accept, unless
// that is as wanted.
func (d *difference) forwarding(h *layout.Actual) forwarding {
	var was xtables.Sum
	exists := false
	if tab := h.Tables["filter"]; tab != nil {
		was, exists = tab.Chains[layout.Forward]
	}
	switch {
	case !exists || was == xtables.SumOf(nil):
		return byNone
	case was != d.want["filter"][layout.Forward]:
		return byOtherMark
	}
	return asWanted
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
	if err != nil {
		err = fmt.Errorf("marking existing connections for FORWARD: %w", err)
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil && !k.warnedUnmarked {
		k.log.Warn("cannot mark existing connections; a firewall may drop them", "tool", k.Tool(), "err", err)
		k.warnedUnmarked = true
	}
	return nil
}

// writeMarked writes a difference. If FORWARD accepted connections by another mark until
// now, they get the new one before, and those that began meanwhile after. If this Kernel has written nothing yet and FORWARD
// accepted none, they may be of another mode, and get it after.
func (k *Kernel) writeMarked(ctx context.Context, h *layout.Actual, d *difference, st *policy.State) error {
	now := d.forwarding(h)
	if now == byOtherMark {
		if err := k.adoptOrWarn(ctx, st); err != nil {
			return err
		}
	}
	if err := k.write(ctx, d); err != nil {
		return err
	}
	first := !k.marked
	k.marked = true
	if now == byOtherMark || now == byNone && first {
		return k.adoptOrWarn(ctx, st)
	}
	return nil
}
