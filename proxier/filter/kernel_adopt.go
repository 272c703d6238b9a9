package filter

import (
	"context"
	"fmt"
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
)

// An originalDst is what clients of a frontend send to.
type originalDst struct {
	protocol uint8
	netip.AddrPort
}

// adopts reports whether SVCP-FORWARD accepts by something else than desired: another
// bit, from before masquerade_bit was changed, or the rule of an older svcproxy.
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
func (k *Kernel) adopt(ctx context.Context, st *proxier.State) error {
	ours := originalDsts(st)
	_, err := conntrack.Mark(ctx, k.tool.IPv6, st.Host.Mark(), func(c conntrack.Connection) bool {
		return c.Reply != c.Dst && ours[originalDst{c.Protocol, c.Dst}]
	})
	if err != nil {
		return fmt.Errorf("marking existing connections for FORWARD: %w", err)
	}
	return nil
}

// adoptOrWarn continues if connections cannot be marked, as on a kernel without
// nf_conntrack_netlink: the rules matter more than existing connections.
func (k *Kernel) adoptOrWarn(ctx context.Context, st *proxier.State) error {
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

// originalDsts returns what clients of all frontends send to.
func originalDsts(st *proxier.State) map[originalDst]bool {
	all := map[originalDst]bool{}
	for _, res := range st.Services {
		for _, f := range res.Frontends {
			for _, a := range st.Host.Addrs(f) {
				all[originalDst{uint8(f.Key.Protocol), netip.AddrPortFrom(a, f.Key.Port)}] = true
			}
		}
	}
	return all
}
