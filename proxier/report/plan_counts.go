package report

import (
	"context"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Count counts what consequences of this plan are about, now. established calls visit with every connection of a family
// that has been answered and is not being closed: where its client sent it to, and which endpoint has it. It or
// tracking may be nil: then what it knows is not counted.
func (p *FamilyPlan) Count(ctx context.Context, tracking flows.Tracking,
	established func(ctx context.Context, fam policy.Family, visit func(proto source.Protocol, dst, reply netip.AddrPort)) error,
	list []Consequence) error {
	placed := p.placedAddrs()
	at := make(map[proxier.FrontendAddr]map[int]bool) // which of list connections that are sent there can be of
	counts := make(map[int]int)                       // of each of list
	for i, c := range list {
		udp := c.Protocol == source.UDP.String()
		if c.Effect == Forgotten || c.Effect == Barred || udp && (tracking == nil || c.Effect != FlowsRemoved && c.Effect != Predating) || !udp && established == nil {
			continue
		}
		counts[i] = 0
		for _, key := range c.keys {
			for _, a := range slices.Concat(p.Host.Addrs(&policy.Frontend{Key: key}), placed[key]) {
				to := proxier.FrontendAddr{Protocol: key.Protocol, AddrPort: netip.AddrPortFrom(a, key.Port)}
				if at[to] == nil {
					at[to] = make(map[int]bool)
				}
				at[to][i] = true
			}
		}
	}
	if len(counts) == 0 {
		return nil
	}
	count := func(proto source.Protocol, dst, reply netip.AddrPort) {
		for i := range at[proxier.FrontendAddr{Protocol: proto, AddrPort: dst}] {
			if len(list[i].Endpoints) == 0 || lists.InSorted(list[i].Endpoints, reply) {
				counts[i]++
			}
		}
	}
	if established != nil {
		err := established(ctx, p.Family, func(proto source.Protocol, dst, reply netip.AddrPort) {
			if proto != source.UDP {
				count(proto, dst, reply)
			}
		})
		if err != nil {
			return err
		}
	}
	if tracking != nil {
		s := &flows.Sync{Changes: asChanges(p.Before, p.After), Host: p.Host, Node: p.Node}
		var former []policy.ServiceChange
		if !p.Fresh {
			former = asChanges(nil, p.Before)
		}
		err := flows.Stale(ctx, tracking, p.Family, former, s, func(f flows.Flow) { count(source.UDP, f.Dst, f.Reply) })
		if err != nil {
			return err
		}
	}
	for i, n := range counts {
		list[i].Connections = &n
	}
	return nil
}

// placedAddrs returns the addresses that node ports of changed services have, or had, of their own.
func (p *FamilyPlan) placedAddrs() map[policy.FrontendKey][]netip.Addr {
	all := make(map[policy.FrontendKey][]netip.Addr)
	for _, ch := range p.Services {
		for _, f := range slices.Concat(ch.Old.AllFrontends(), ch.New.AllFrontends()) {
			if f.Placed {
				all[f.Key] = append(all[f.Key], f.NodePortAddrs...)
			}
		}
	}
	return all
}

// asChanges returns what leads from one set of services to another, never nil; what is equal is left out.
func asChanges(before, after map[source.Key]*policy.Resolved) []policy.ServiceChange {
	all := make([]policy.ServiceChange, 0, len(after))
	for key, r := range after {
		if before[key] != r {
			all = append(all, policy.ServiceChange{Old: before[key], New: r})
		}
	}
	for key, r := range before {
		if after[key] == nil {
			all = append(all, policy.ServiceChange{Old: r})
		}
	}
	return all
}
