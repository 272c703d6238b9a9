package filter

import (
	"slices"

	"svcproxy/netutil/ipset"
	"svcproxy/proxier"
	"svcproxy/source"
)

// Meetings say where IPVS balances an address of this host that node ports have too.
// The address comes first: rules and sets of a node port leave it out, or its
// packets would meet both services.
type overlaps struct {
	taken     map[ipset.Entry]bool // by addressed frontends
	nodePorts map[protocolPort]*proxier.Frontend
}

// A door is what node ports differ in.
type protocolPort struct {
	protocol source.Protocol
	port     uint16
}

func newOverlaps() overlaps {
	return overlaps{map[ipset.Entry]bool{}, map[protocolPort]*proxier.Frontend{}}
}

func protocolPortOf(f *proxier.Frontend) protocolPort {
	return protocolPort{f.Key.Protocol, f.Key.Port}
}

func entryOf(f *proxier.Frontend) ipset.Entry {
	return ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
}

// takes reports whether IPVS balances a frontend at an address that node ports have.
func (r *Rules) takesNodePort(f *proxier.Frontend) bool {
	return r.layout.ipvs && f.Key.Kind != proxier.NodePort && f.Outside.Action == proxier.Balance &&
		slices.Contains(r.host.NodePortAddrs, f.Key.Addr)
}

// leads tells whether the trees lead a frontend's packets to rules of its own.
func (r *Rules) hasRules(f *proxier.Frontend) bool { return r.layout.hasRules(f) || r.takesNodePort(f) }

// meet follows the coming of a frontend.
func (r *Rules) addOverlap(f *proxier.Frontend) {
	switch {
	case f.Key.Kind == proxier.NodePort:
		r.overlaps.nodePorts[protocolPortOf(f)] = f
	case r.takesNodePort(f):
		r.overlaps.taken[entryOf(f)] = true
	}
}

// part follows the going of a frontend.
func (r *Rules) removeOverlap(f *proxier.Frontend) {
	switch {
	case f.Key.Kind == proxier.NodePort:
		delete(r.overlaps.nodePorts, protocolPortOf(f))
	case r.takesNodePort(f):
		delete(r.overlaps.taken, entryOf(f))
	}
}

// beside returns the node ports that stay as they are, but may lose an address to
// frontends that come, or get it back from those that go.
func (r *Rules) overlappedNodePorts(old, now []*proxier.Frontend) (stay []*proxier.Frontend) {
	done := map[protocolPort]bool{}
	for _, f := range old {
		if f.Key.Kind == proxier.NodePort {
			done[protocolPortOf(f)] = true
		}
	}
	for _, f := range slices.Concat(old, now) {
		if !r.takesNodePort(f) || done[protocolPortOf(f)] {
			continue
		}
		done[protocolPortOf(f)] = true
		if met := r.overlaps.nodePorts[protocolPortOf(f)]; met != nil {
			stay = append(stay, met)
		}
	}
	return stay
}
