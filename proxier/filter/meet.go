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
type meetings struct {
	taken     map[ipset.Entry]bool // by addressed frontends
	nodePorts map[door]*proxier.Frontend
}

// A door is what node ports differ in.
type door struct {
	protocol source.Protocol
	port     uint16
}

func newMeetings() meetings {
	return meetings{map[ipset.Entry]bool{}, map[door]*proxier.Frontend{}}
}

func doorOf(f *proxier.Frontend) door { return door{f.Key.Protocol, f.Key.Port} }

func entryOf(f *proxier.Frontend) ipset.Entry {
	return ipset.Entry{Addr: f.Key.Addr, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
}

// takes reports whether IPVS balances a frontend at an address that node ports have.
func (r *Rules) takes(f *proxier.Frontend) bool {
	return r.layout.ipvs && f.Key.Kind != proxier.NodePort && f.Outside.Action == proxier.Balance &&
		slices.Contains(r.host.NodePortAddrs, f.Key.Addr)
}

// leads tells whether the trees lead a frontend's packets to rules of its own.
func (r *Rules) leads(f *proxier.Frontend) bool { return r.layout.leads(f) || r.takes(f) }

// meet follows the coming of a frontend.
func (r *Rules) meet(f *proxier.Frontend) {
	switch {
	case f.Key.Kind == proxier.NodePort:
		r.meetings.nodePorts[doorOf(f)] = f
	case r.takes(f):
		r.meetings.taken[entryOf(f)] = true
	}
}

// part follows the going of a frontend.
func (r *Rules) part(f *proxier.Frontend) {
	switch {
	case f.Key.Kind == proxier.NodePort:
		delete(r.meetings.nodePorts, doorOf(f))
	case r.takes(f):
		delete(r.meetings.taken, entryOf(f))
	}
}

// beside returns the node ports that stay as they are, but may lose an address to
// frontends that come, or get it back from those that go.
func (r *Rules) beside(old, now []*proxier.Frontend) (stay []*proxier.Frontend) {
	done := map[door]bool{}
	for _, f := range old {
		if f.Key.Kind == proxier.NodePort {
			done[doorOf(f)] = true
		}
	}
	for _, f := range slices.Concat(old, now) {
		if !r.takes(f) || done[doorOf(f)] {
			continue
		}
		done[doorOf(f)] = true
		if met := r.meetings.nodePorts[doorOf(f)]; met != nil {
			stay = append(stay, met)
		}
	}
	return stay
}
