package filter

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// adopts reports whether SVCP-FORWARD accepts by something else than desired: another
// bit, from before masquerade_bit was changed.
// Existing connections do not have the mark that it will accept.
func (d *difference) adopts(h *Actual) bool {
	tab := h.tables["filter"]
	if tab == nil {
		return false
	}
	was, exists := tab.Chains[Forward]
	return exists && was != xtables.SumOf(nil) && was != d.want["filter"][Forward]
}

// adopt marks the connections that st's frontends have balanced.
func (k *Kernel) adopt(ctx context.Context, st *policy.State) error {
	ours := map[proxier.FrontendAddr]bool{}
	serving := proxier.NewServing(st.Family, st.Host, slices.Collect(maps.Values(st.Services))...)
	for at := range serving.FrontendAddrs() {
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
