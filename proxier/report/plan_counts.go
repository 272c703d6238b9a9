package report

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/flows"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Connections is the part of connection tracking that knows connections of any protocol.
type Connections interface {
	// Established calls visit with every connection of a family that has been answered
	// and is not being closed: where its client sent it to, and which endpoint has it.
	Established(ctx context.Context, fam policy.Family, visit func(proto source.Protocol, dst, reply netip.AddrPort)) error
}

// Count counts what consequences of this plan are about, now. Either of the first two may
// be nil: then what it knows is not counted.
func (p *FamilyPlan) Count(ctx context.Context, tracking flows.Tracking, conns Connections, list []Consequence) error {
	p.placed = p.placedAddrs()
	about, addrs := p.about(list)
	if len(about) == 0 {
		return nil
	}
	counts := make(map[proxier.Pair]int)
	if conns != nil {
		err := conns.Established(ctx, p.Family, func(proto source.Protocol, dst, reply netip.AddrPort) {
			if to := (proxier.FrontendAddr{Protocol: proto, AddrPort: dst}); proto != source.UDP && addrs[to] {
				counts[proxier.Pair{FrontendAddr: to, Target: reply}]++
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
		err := flows.Stale(ctx, tracking, p.Family, former, s, func(f flows.Flow) {
			counts[proxier.Pair{FrontendAddr: proxier.FrontendAddr{Protocol: source.UDP, AddrPort: f.Dst}, Target: f.Reply}]++
		})
		if err != nil {
			return err
		}
	}
	for _, i := range about {
		c := &list[i]
		if c.Counted = tracking != nil && c.Protocol == source.UDP || conns != nil && c.Protocol != source.UDP; c.Counted {
			c.Count = p.sum(c, counts)
		}
	}
	return nil
}

// about returns the numbers of the consequences that can be counted, and where their
// connections are sent to.
func (p *FamilyPlan) about(list []Consequence) (numbers []int, addrs map[proxier.FrontendAddr]bool) {
	addrs = make(map[proxier.FrontendAddr]bool)
	for i, c := range list {
		if c.Effect == Forgotten || c.Effect == Barred || c.Protocol == source.UDP && c.Effect != FlowsRemoved && c.Effect != Predating {
			continue
		}
		numbers = append(numbers, i)
		maps.Copy(addrs, p.frontendAddrs(&c))
	}
	return numbers, addrs
}

// frontendAddrs returns where the connections of a consequence are sent to.
func (p *FamilyPlan) frontendAddrs(c *Consequence) map[proxier.FrontendAddr]bool {
	addrs := make(map[proxier.FrontendAddr]bool)
	for _, key := range c.Frontends {
		for _, a := range p.addrs(key) {
			addrs[proxier.FrontendAddr{Protocol: c.Protocol, AddrPort: netip.AddrPortFrom(a, key.Port)}] = true
		}
	}
	return addrs
}

// addrs returns the addresses that changed frontends of a key are, or were, reached at.
func (p *FamilyPlan) addrs(key policy.FrontendKey) []netip.Addr {
	addrs := p.Host.Addrs(&policy.Frontend{Key: key})
	return append(slices.Clip(addrs), p.placed[key]...)
}

// placedAddrs returns the addresses that node ports of changed services have, or had, of their own.
func (p *FamilyPlan) placedAddrs() map[policy.FrontendKey][]netip.Addr {
	all := make(map[policy.FrontendKey][]netip.Addr)
	for _, ch := range p.Services {
		for _, r := range []*policy.Resolved{ch.Old, ch.New} {
			for _, f := range lists.Keep(r.AllFrontends(), func(f *policy.Frontend) bool { return f.Placed }) {
				all[f.Key] = append(all[f.Key], f.NodePortAddrs...)
			}
		}
	}
	return all
}

// sum adds up what a consequence is about.
func (p *FamilyPlan) sum(c *Consequence, counts map[proxier.Pair]int) (n int) {
	addrs := p.frontendAddrs(c)
	for at, count := range counts {
		if addrs[at.FrontendAddr] && (len(c.Endpoints) == 0 || lists.InSorted(c.Endpoints, at.Target)) {
			n += count
		}
	}
	return n
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
