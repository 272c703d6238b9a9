package layout

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A member is an entry of a set; its name is without the family's suffix.
type member struct {
	set string
	ipset.Entry
}

// A memberCount counts the frontends that need a member: a node port and an
// external address can have the same address, port and protocol.
type memberCount map[member]int

func (c memberCount) add(m member, n int) {
	if c[m] += n; c[m] == 0 {
		delete(c, m)
	}
}

// eachMember calls do with the members that a frontend adds to sets, and how often.
func (r *Rules) eachMember(f *policy.Frontend, do func(m member, n int)) {
	sets := r.layout.memberOf(f)
	if f.Placed {
		sets = append(sets, placedSet)
	}
	if len(sets) == 0 && !f.Restricted {
		return
	}
	for _, a := range r.host.Addrs(f) {
		e := ipset.Entry{Addr: a, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
		if f.Key.Kind == policy.NodePort && !r.hasPlace(f, e) {
			continue
		}
		for _, set := range sets {
			do(member{set, e}, 1)
		}
		if f.Restricted {
			do(member{FirewalledSet, e}, 1)
			r.eachRange(f, e, do)
		}
	}
}

// eachRange does the same with who may use a restricted frontend. A node port at the address of
// another frontend that limits it has in place of the ranges of both what they have in common.
func (r *Rules) eachRange(f *policy.Frontend, e ipset.Entry, do func(m member, n int)) {
	put := func(ranges []netip.Prefix, n int) {
		for _, p := range ranges {
			for _, e.Net = range halves(p) {
				do(member{rangesSet, e}, n)
			}
		}
	}
	limited := r.overlaps.limited[e]
	if f.Key.Kind != policy.NodePort || limited == nil {
		put(f.SourceRanges, 1)
		return
	}
	put(limited.SourceRanges, -1) // which it has put itself
	put(policy.InBoth(f.SourceRanges, limited.SourceRanges), 1)
}

// refusalSets returns the set that refuses the packets of f that are not balanced, if
// there are any; those that are never reach it with f's address.
func refusalSets(f *policy.Frontend) []string {
	switch f.Refusal() {
	case policy.Reject:
		return []string{rejectSet}
	case policy.Drop:
		return []string{dropSet}
	}
	return nil
}

// halves returns p, or two halves of the prefix of length 0, which sets cannot hold.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p.Masked()}
	}
	upper := p.Addr().AsSlice()
	clear(upper)
	lower, _ := netip.AddrFromSlice(upper)
	upper[0] = 0x80
	half, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(lower, 1), netip.PrefixFrom(half, 1)}
}

func addrEntry(a netip.Addr) ipset.Entry { return ipset.Entry{Addr: a} }

func hairpinEntry(h policy.Hairpin) ipset.Entry {
	at := h.AddrPort()
	return ipset.Entry{
		Addr: at.Addr(), Protocol: uint8(h.Protocol), Port: at.Port(),
		Net: netip.PrefixFrom(at.Addr(), at.Addr().BitLen()),
	}
}

// Sets returns all sets by name, with their members, after Reset to st.
func (r *Rules) Sets(st *policy.State) map[string]Members {
	types := slices.Concat(SharedSets, r.layout.sets)
	sets := make(map[string]Members, len(types))
	for _, s := range types {
		sets[r.words.Set(s.name)] = Members{Type: s.Type, Entries: map[ipset.Entry]struct{}{}}
	}
	add := func(set string, e ipset.Entry) { sets[r.words.Set(set)].Entries[e] = struct{}{} }
	for m := range r.members {
		if !r.withholds(m) {
			add(m.set, m.Entry)
		}
	}
	for a := range r.layout.refused.addrs(st) {
		add(r.layout.refused.name, addrEntry(a))
	}
	for _, a := range r.host.ServiceCIDRExempt {
		add(exemptSet, addrEntry(a))
	}
	for h := range st.Hairpins {
		add(hairpinSet, hairpinEntry(h))
	}
	return sets
}

// Members are the contents of a set.
type Members struct {
	Type    ipset.Type
	Entries map[ipset.Entry]struct{}
}
