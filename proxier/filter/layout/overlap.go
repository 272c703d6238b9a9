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
	taken     map[ipset.Entry]bool             // by frontends with an address
	limited   map[ipset.Entry]*policy.Frontend // to those who may use these
	nodePorts map[protocolPort]*policy.Frontend
}

// A protocolPort identifies a node port.
type protocolPort struct {
	protocol source.Protocol
	port     uint16
}

func newOverlaps() overlaps {
	return overlaps{map[ipset.Entry]bool{}, map[ipset.Entry]*policy.Frontend{}, map[protocolPort]*policy.Frontend{}}
}

func protocolPortOf(f *policy.Frontend) protocolPort {
	return protocolPort{f.Key.Protocol, f.Key.Port}
}

func entryOf(f *policy.Frontend) ipset.Entry {
	return ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
}

// takesNodePort reports whether a frontend at an address that serves node ports is balanced by
// IPVS, or by rules that not all packets match.
func (r *Rules) takesNodePort(f *policy.Frontend) bool {
	return r.takesAny(f) && r.servesNodePorts(f.Key.Addr)
}

// servesNodePorts reports whether an address serves node ports without addresses of their own.
func (r *Rules) servesNodePorts(a netip.Addr) bool { return slices.Contains(r.host.NodePortAddrs, a) }

// takesAny reports the same of any address of this host, such as serves node ports of a service that says so.
func (r *Rules) takesAny(f *policy.Frontend) bool {
	return f.Key.Kind != policy.NodePort && f.Outside.Action == policy.Balance && (r.layout.ipvs || f.Restricted)
}

// limits reports whether a frontend with an address leaves to a node port only the packets of those
// who may use it.
func limits(f *policy.Frontend) bool {
	return f.Key.Kind != policy.NodePort && f.Outside.Action != policy.Balance && f.Restricted
}

// limitsNodePort reports the same of an address that serves node ports.
func (r *Rules) limitsNodePort(f *policy.Frontend) bool {
	return limits(f) && r.servesNodePorts(f.Key.Addr)
}

// hasPlace reports whether a node port has an address of this host. One for everybody, on addresses of its
// own, leaves to a frontend that limits it what no rule keeps the others from.
func (r *Rules) hasPlace(f *policy.Frontend, e ipset.Entry) bool {
	free := f.Restricted || r.overlaps.limited[e] == nil || r.servesNodePorts(e.Addr)
	return free && !r.overlaps.taken[e]
}

// onHost reports whether an interface of this host carries the address of f, which is not ours to bind.
func (r *Rules) onHost(f *policy.Frontend) bool {
	res := r.resolved[f.ServicePort.Key]
	return res != nil && !slices.Contains(res.BoundAddrs, f.Key.Addr)
}

// hasRules reports whether the trees have rules for a frontend.
func (r *Rules) hasRules(f *policy.Frontend) bool {
	return r.layout.hasRules(f) || r.takesNodePort(f) || r.limitsNodePort(f)
}

// addOverlap adds a frontend.
func (r *Rules) addOverlap(f *policy.Frontend) {
	switch {
	case f.Key.Kind == policy.NodePort:
		r.overlaps.nodePorts[protocolPortOf(f)] = f
	case r.takesNodePort(f), r.takesAny(f) && r.onHost(f):
		r.overlaps.taken[entryOf(f)] = true
	case limits(f):
		r.overlaps.limited[entryOf(f)] = f
	}
}

// removeOverlap removes a frontend.
func (r *Rules) removeOverlap(f *policy.Frontend) {
	switch {
	case f.Key.Kind == policy.NodePort:
		delete(r.overlaps.nodePorts, protocolPortOf(f))
	default:
		delete(r.overlaps.taken, entryOf(f))
		delete(r.overlaps.limited, entryOf(f))
	}
}

// overlappedNodePorts returns the unchanged node ports that may lose an address to new
// frontends, or get it back from removed ones, in whole or in part.
func (r *Rules) overlappedNodePorts(old, now []*policy.Frontend) (stay []*policy.Frontend) {
	done := map[protocolPort]bool{}
	for _, f := range old {
		if f.Key.Kind == policy.NodePort {
			done[protocolPortOf(f)] = true
		}
	}
	for _, f := range slices.Concat(old, now) {
		if !r.takesAny(f) && !limits(f) || done[protocolPortOf(f)] {
			continue
		}
		done[protocolPortOf(f)] = true
		if met := r.overlaps.nodePorts[protocolPortOf(f)]; met != nil {
			stay = append(stay, met)
		}
	}
	return stay
}
