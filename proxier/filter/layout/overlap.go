package layout

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Overlaps are the addresses of this host at which IPVS balances a frontend on the port
// of a node port, or not everybody may use it. The frontend wins: rules and sets of the node
// port leave it out, or packets would match both services. Where it does not balance, the node
// port has the packets of those who may use both.
type overlaps struct {
	*frame
	taken     map[ipset.Entry]bool             // by frontends with an address
	limited   map[ipset.Entry]*policy.Frontend // to those who may use these
	nodePorts map[protocolPort]*policy.Frontend
}

// A protocolPort identifies a node port.
type protocolPort struct {
	protocol source.Protocol
	port     uint16
}

func newOverlaps(f *frame) overlaps {
	return overlaps{f, map[ipset.Entry]bool{}, map[ipset.Entry]*policy.Frontend{}, map[protocolPort]*policy.Frontend{}}
}

func protocolPortOf(f *policy.Frontend) protocolPort {
	return protocolPort{f.Key.Protocol, f.Key.Port}
}

func entryOf(f *policy.Frontend) ipset.Entry {
	return ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
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
	return f.Key.Kind != policy.NodePort && f.Outside.Action == policy.Balance && (fr.layout.byIPVS || f.Restricted)
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

// hasRules reports whether the trees have rules for a frontend.
func (fr *frame) hasRules(f *policy.Frontend) bool {
	return fr.layout.hasRules(f) || fr.takesNodePort(f) || fr.limitsNodePort(f)
}

// add adds a frontend of a service.
func (o *overlaps) add(f *policy.Frontend, of *policy.Resolved) {
	switch {
	case f.Key.Kind == policy.NodePort:
		o.nodePorts[protocolPortOf(f)] = f
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
		delete(o.nodePorts, protocolPortOf(f))
	default:
		delete(o.taken, entryOf(f))
		delete(o.limited, entryOf(f))
	}
}

// meeting returns the unchanged node ports that may lose an address to new
// frontends, or get it back from removed ones, in whole or in part.
func (o *overlaps) meeting(old, now []*policy.Frontend) (stay []*policy.Frontend) {
	done := map[protocolPort]bool{}
	for _, f := range old {
		if f.Key.Kind == policy.NodePort {
			done[protocolPortOf(f)] = true
		}
	}
	for _, f := range slices.Concat(old, now) {
		if !o.takesAny(f) && !limits(f) || done[protocolPortOf(f)] {
			continue
		}
		done[protocolPortOf(f)] = true
		if met := o.nodePorts[protocolPortOf(f)]; met != nil {
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
