// Package program says what the program decides, in the words of the model of package policy.
package program

import (
	"net/netip"
	"slices"

	proxierpolicy "svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/test/policy"
)

// Node returns a host as the program knows it.
func Node(h *policy.Host) *proxierpolicy.Node {
	n := &proxierpolicy.Node{Name: h.Name, Zone: h.Zone, LocalCIDRs: h.LocalCIDRs, LocalInterfaces: h.LocalInterfaces,
		Masquerade: h.Masquerade, MarkBit: 14, ServiceCIDRs: h.ServiceCIDRs}
	for _, a := range h.Addresses {
		n.Addrs = append(n.Addrs, a.Addr)
		if a.Up {
			n.UpAddrs = append(n.UpAddrs, a.Addr)
		}
		if a.Primary {
			n.PrimaryAddrs = append(n.PrimaryAddrs, a.Addr)
		}
	}
	for _, list := range []*[]netip.Addr{&n.Addrs, &n.UpAddrs, &n.PrimaryAddrs} {
		slices.SortFunc(*list, netip.Addr.Compare)
	}
	n.NodePortAddrs = n.NodePortAddrsOf(h.NodePortAddresses)
	return n
}

// Answer returns what a State of the family of a packet says of it, as backends put it into the kernel.
func Answer(st *proxierpolicy.State, p policy.Packet) policy.Outcomes {
	if frontends := frontendsAt(st, p); len(frontends) > 0 {
		return answerOf(frontends[0], st, p)
	}
	a := p.To.Addr()
	inCIDRs := slices.ContainsFunc(st.Host.ServiceCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
	exempt := slices.Contains(st.Host.ServiceCIDRExempt, a)
	if st.RefusedAddrs[a] > 0 || inCIDRs && !exempt {
		return only(policy.Refused)
	}
	return only(policy.Untouched)
}

// answerOf returns what a frontend does with a packet.
func answerOf(f *proxierpolicy.Frontend, st *proxierpolicy.State, p policy.Packet) policy.Outcomes {
	if !f.Admits(p.From) {
		return only(policy.Dropped)
	}
	sender := proxierpolicy.Sender{Addr: p.From, Host: p.Process, Interface: p.Interface}
	r := f.RouteOf(sender, &st.Host)
	switch r.Action {
	case proxierpolicy.Drop:
		return only(policy.Dropped)
	case proxierpolicy.Reject:
		return only(policy.Refused)
	}
	out := policy.Outcomes{}
	for _, target := range r.Pool.Targets {
		hairpin := target.Addr() == p.From && st.Hairpins[proxierpolicy.NewHairpin(target.AddrPort(), r.Pool.Protocol)] > 0
		out[policy.Outcome{Verdict: policy.Balanced, Endpoint: target.AddrPort(), Masqueraded: hairpin || r.Masquerade.Covers(sender, &st.Host)}] = int(target.Weight)
	}
	return out
}

// frontendsAt returns the frontends that a packet is addressed to, node ports last.
func frontendsAt(st *proxierpolicy.State, p policy.Packet) (list []*proxierpolicy.Frontend) {
	for _, res := range st.Services {
		for _, f := range res.Frontends {
			if f.Key.Protocol == p.Protocol && f.Key.Port == p.To.Port() && slices.Contains(st.Host.Addrs(f), p.To.Addr()) {
				list = append(list, f)
			}
		}
	}
	slices.SortFunc(list, func(a, b *proxierpolicy.Frontend) int { return int(a.Key.Kind) - int(b.Key.Kind) })
	return list
}

func only(v policy.Verdict) policy.Outcomes { return policy.Outcomes{{Verdict: v}: 1} }
