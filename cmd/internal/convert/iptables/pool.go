package iptables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
)

// A pool is where connections to a frontend go in the end.
type pool struct {
	to       []netip.AddrPort
	weights  []uint16
	affinity uint64
	hashed   bool // clients keep their endpoint
	ranges   []netip.Prefix
	notes    []reader.Note

	shares map[netip.AddrPort]float64 // what of all connections each endpoint gets
	rest   float64                    // what no rule has taken yet
	of     *leaf                      // the first that is taken
}

func (p *pool) note(at reader.Position, msg, hint string) {
	p.notes = append(p.notes, reader.Note{At: at, Msg: msg, Hint: hint})
}

// tell notes of the service what was noted.
func (p *pool) tell(s *reader.Service) {
	for _, n := range p.notes {
		s.Note(n.At, n.Msg, n.Hint)
	}
}

// pool returns the endpoints of a frontend, with weights as rules give them shares.
func (f *frontend) pool() *pool {
	p := &pool{ranges: f.ranges, shares: map[netip.AddrPort]float64{}, rest: 1}
	var others, asked []leaf
	open, direct := f.open()
	for _, l := range f.leaves {
		switch {
		case l.affinity != 0:
			p.affinity = l.affinity
		case l.shortcut != 0 && direct, l.fromHost:
			// others get there as well
		case open && l.src.IsValid():
			others = append(others, l)
		case p.takes(l):
			asked = append(asked, l)
			p.add(l, f.port)
		default:
			asked, others = append(asked, l), append(others, l)
		}
	}
	for _, l := range asked { // lets in the clients that rules lead to these endpoints alone
		if l.src.IsValid() && p.elsewhere(l, f.port) == nil && !slices.Contains(p.ranges, l.src.Masked()) && len(p.ranges) < 1000 {
			p.ranges = append(p.ranges, l.src.Masked())
		}
	}
	p.weigh()
	if p.rest > 1e-6 && len(p.to) > 0 {
		p.note(f.leaves[0].at, fmt.Sprintf("the rules took %.3g %% of connections, and the service takes all", 100*(1-p.rest)), "make what got the others an endpoint, with a weight")
	}
	for _, l := range others {
		if to := p.elsewhere(l, f.port); to != nil && l.src.IsValid() {
			p.note(l.at, fmt.Sprintf("DNAT of port %d to %s is left out: only clients of %s get there, and others have another endpoint", f.port, to.Addr(), l.src), "write a service with an address of its own")
		}
	}
	return p
}

// elsewhere returns where a leaf sends connections that gets none of the pool; nil: nowhere.
func (p *pool) elsewhere(l leaf, port uint16) *netip.AddrPort {
	for i, to := range l.to {
		if p.shares[netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), port))] == 0 {
			return &l.to[i]
		}
	}
	return nil
}

// open reports whether everybody may use a frontend, and whether rules lead there without shortcut.
func (f *frontend) open() (open, direct bool) {
	direct = slices.ContainsFunc(f.leaves, func(l leaf) bool { return l.affinity == 0 && l.shortcut == 0 })
	open = slices.ContainsFunc(f.leaves, func(l leaf) bool {
		return l.affinity == 0 && (l.shortcut == 0 || !direct) && !l.src.IsValid() && !l.fromHost
	})
	return open, direct
}

// takes reports whether a leaf is for the clients, and on the way, of the first one.
func (p *pool) takes(l leaf) bool {
	if l.svl || l.shortcut != 0 {
		p.note(l.at, "the traffic policy local is left out: rules do not say on which node other endpoints are", `write node of endpoints, and external_traffic_policy = "local"`)
	}
	if p.of == nil {
		p.of = &l
	}
	return l.src == p.of.src && l.shortcut == p.of.shortcut
}

// add gives the endpoints of a leaf their shares of what is left.
func (p *pool) add(l leaf, port uint16) {
	part := p.rest * l.chance
	p.rest -= part
	if part <= 1e-9 {
		p.note(l.at, fmt.Sprintf("DNAT of port %d to %s is left out: rules before it have all connections", port, l.to[0].Addr()), "")
		return
	}
	p.hashed = p.hashed || l.persistent
	for _, to := range l.to {
		to = netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), port))
		if _, known := p.shares[to]; !known {
			p.to = append(p.to, to)
		}
		p.shares[to] += part / float64(len(l.to))
	}
}

// weigh makes weights: whole numbers that are to each other as shares are, within a fiftieth.
func (p *pool) weigh() {
	least := 1.0
	for _, share := range p.shares {
		least = min(least, share)
	}
	p.weights = make([]uint16, len(p.to))
	for scale, good := 1, false; scale <= 100 && !good; scale++ {
		good = true
		for i, to := range p.to {
			exact := p.shares[to] / least * float64(scale)
			p.weights[i] = uint16(min(65535, exact+0.5))
			good = good && float64(p.weights[i]) < exact*1.02 && float64(p.weights[i]) > exact*0.98
		}
	}
}
