package layout

import (
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A member is an entry of a set; its name is without the family's suffix.
type member struct {
	set string
	ipset.Entry
}

// Actual is what the kernel holds of ours.
type Actual struct {
	Tables map[string]*xtables.Table
	Sets   map[string]*ipset.Listing
}

// Balances reports whether rules of iptables mode balance.
func (h *Actual) Balances() bool {
	for name := range h.Sets {
		if strings.HasPrefix(name, vipsSet+"-") {
			return true
		}
	}
	return false
}

// leadsTo reports whether packets in a built-in chain of any table pass a chain of ours whose name ends so.
func (h *Actual) leadsTo(hook, chain string) bool {
	for _, tab := range h.Tables {
		if slices.ContainsFunc(tab.Jumps[hook], func(rule string) bool { return strings.HasSuffix(rule, chain) }) {
			return true
		}
	}
	return false
}

// sets returns the sets of this mode.
func (fr *frame) sets() []ipset.Set {
	if fr.byIPVS {
		return slices.Concat(SharedSets, ipvsSets)
	}
	return slices.Concat(SharedSets, []ipset.Set{{Name: vipsSet, Type: ipset.HashIP}})
}

// setsOf returns the sets that a frontend is a member of, except for those of source ranges. What refuses
// is for packets of f that are not balanced, if there are any; those that are never reach it with f's address.
func (fr *frame) setsOf(f *policy.Frontend) (sets []string) {
	switch f.Refusal() {
	case policy.Reject:
		sets = []string{rejectSet}
	case policy.Drop:
		sets = []string{dropSet}
	}
	if fr.byIPVS {
		sets = append(sets, ipvsSetsOf(f)...)
	}
	if f.Placed {
		sets = append(sets, placedSet)
	}
	return sets
}

// refusedSet returns the set of addresses on which packets to no frontend are refused, which the State counts.
func (fr *frame) refusedSet() string {
	if fr.byIPVS {
		return boundSet
	}
	return vipsSet
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

// Members are the contents of a set.
type Members struct {
	Type    ipset.Type
	Entries map[ipset.Entry]struct{}
}

// Overlaps are the addresses of this host at which IPVS balances a frontend on the port
// of a node port, or not everybody may use it. The frontend wins: rules and sets of the node
// port leave it out, or packets would match both services. Where it does not balance, the node
// port has the packets of those who may use both.
type overlaps struct {
	*frame
	taken     map[ipset.Entry]bool             // by frontends with an address
	limited   map[ipset.Entry]*policy.Frontend // to those who may use these
	nodePorts map[ipset.Entry]*policy.Frontend // by portOf
}

func newOverlaps(f *frame) overlaps {
	return overlaps{f, map[ipset.Entry]bool{}, map[ipset.Entry]*policy.Frontend{}, map[ipset.Entry]*policy.Frontend{}}
}

func entryOf(f *policy.Frontend) ipset.Entry {
	return ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
}

// portOf returns an entry without an address, which identifies a node port.
func portOf(f *policy.Frontend) ipset.Entry {
	return ipset.Entry{Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
}

// takesNodePort reports whether a frontend at an address that serves node ports is balanced by
// IPVS, or by rules that not all packets match.
func (fr *frame) takesNodePort(f *policy.Frontend) bool {
	return fr.takesAny(f) && fr.servesNodePorts(f.Key.Addr)
}

// servesNodePorts reports whether an address serves node ports without addresses of their own.
func (fr *frame) servesNodePorts(a netip.Addr) bool { return slices.Contains(fr.host.NodePortAddrs, a) }

// takesAny reports the same of any address of this host, such as serves node ports of a service that says so.
func (fr *frame) takesAny(f *policy.Frontend) bool {
	return f.Key.Kind != policy.NodePort && f.Outside.Action == policy.Balance && (fr.byIPVS || f.Restricted)
}

// limits reports whether a frontend with an address leaves to a node port only the packets of those
// who may use it.
func limits(f *policy.Frontend) bool {
	return f.Key.Kind != policy.NodePort && f.Outside.Action != policy.Balance && f.Restricted
}

// limitsNodePort reports the same of an address that serves node ports.
func (fr *frame) limitsNodePort(f *policy.Frontend) bool {
	return limits(f) && fr.servesNodePorts(f.Key.Addr)
}

// hasPlace reports whether a node port has an address of this host. One for everybody, on addresses of its
// own, leaves to a frontend that limits it what no rule keeps the others from.
func (o *overlaps) hasPlace(f *policy.Frontend, e ipset.Entry) bool {
	free := f.Restricted || o.limited[e] == nil || o.servesNodePorts(e.Addr)
	return free && !o.taken[e]
}

// balances reports whether rules balance packets to a frontend; in ipvs mode those of local sources.
func (fr *frame) balances(f *policy.Frontend) bool {
	if fr.byIPVS {
		return f.Split() && f.FromLocal.Action == policy.Balance
	}
	return f.Balances()
}

// hasRules reports whether the trees have rules for a frontend.
func (fr *frame) hasRules(f *policy.Frontend) bool {
	return fr.balances(f) || fr.takesNodePort(f) || fr.limitsNodePort(f)
}

// add adds a frontend of a service.
func (o *overlaps) add(f *policy.Frontend, of *policy.Resolved) {
	switch {
	case f.Key.Kind == policy.NodePort:
		o.nodePorts[portOf(f)] = f
	case o.takesNodePort(f), o.takesAny(f) && of != nil && !slices.Contains(of.BoundAddrs, f.Key.Addr): // not ours to bind
		o.taken[entryOf(f)] = true
	case limits(f):
		o.limited[entryOf(f)] = f
	}
}

// remove removes a frontend.
func (o *overlaps) remove(f *policy.Frontend) {
	switch {
	case f.Key.Kind == policy.NodePort:
		delete(o.nodePorts, portOf(f))
	default:
		delete(o.taken, entryOf(f))
		delete(o.limited, entryOf(f))
	}
}

// meeting returns the unchanged node ports that may lose an address to new
// frontends, or get it back from removed ones, in whole or in part.
func (o *overlaps) meeting(old, now []*policy.Frontend) (stay []*policy.Frontend) {
	done := map[ipset.Entry]bool{}
	for _, f := range old {
		if f.Key.Kind == policy.NodePort {
			done[portOf(f)] = true
		}
	}
	for _, f := range slices.Concat(old, now) {
		if !o.takesAny(f) && !limits(f) || done[portOf(f)] {
			continue
		}
		done[portOf(f)] = true
		if met := o.nodePorts[portOf(f)]; met != nil {
			stay = append(stay, met)
		}
	}
	return stay
}

// eachRange does the same with who may use a restricted frontend. A node port at the address of
// another frontend that limits it has in place of the ranges of both what they have in common.
func (o *overlaps) eachRange(f *policy.Frontend, e ipset.Entry, do func(m member, n int)) {
	put := func(ranges []netip.Prefix, n int) {
		for _, p := range ranges {
			for _, e.Net = range halves(p) {
				do(member{rangesSet, e}, n)
			}
		}
	}
	limited := o.limited[e]
	if f.Key.Kind != policy.NodePort || limited == nil {
		put(f.SourceRanges, 1)
		return
	}
	put(limited.SourceRanges, -1) // which it has put itself
	put(policy.InBoth(f.SourceRanges, limited.SourceRanges), 1)
}
