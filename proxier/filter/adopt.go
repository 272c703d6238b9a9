package filter

import (
	"context"
	"fmt"
	"maps"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

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

// adopt marks the connections that st's frontends have balanced.
func (k *Kernel) adopt(ctx context.Context, st *policy.State) error {
	ours := map[proxier.FrontendAddr]bool{}
	for at := range proxier.FrontendAddrs(&st.Host, maps.Values(st.Services)) {
		ours[at] = true
	}
	_, err := conntrack.Mark(ctx, k.tool.IPv6, st.Host.Mark(), func(c conntrack.Connection) bool {
		return c.Reply != c.Dst && ours[proxier.FrontendAddr{Protocol: source.Protocol(c.Protocol), AddrPort: c.Dst}]
	})
	if err != nil {
		return fmt.Errorf("marking existing connections for FORWARD: %w", err)
	}
	return nil
}

// adoptOrWarn continues if connections cannot be marked, as on a kernel without
// nf_conntrack_netlink: the rules matter more than existing connections.
func (k *Kernel) adoptOrWarn(ctx context.Context, st *policy.State) error {
	err := k.adopt(ctx, st)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !k.warnedUnmarked {
		k.log.Warn("existing connections could not be marked: a firewall may drop them", "tool", k.Tool(), "err", err)
		k.warnedUnmarked = true
	}
	return nil
}
