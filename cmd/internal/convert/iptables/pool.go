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
}

// A share collects what of all connections each endpoint of a frontend gets.
type share struct {
	*pool
	of    map[netip.AddrPort]float64
	rest  float64 // what no rule has taken yet
	src   netip.Prefix
	via   int // the line of a shortcut
	begun bool
}

// pool returns the endpoints of a frontend, with weights as rules give them shares.
func (f *frontend) pool() pool {
	p := pool{ranges: f.ranges}
	s := share{pool: &p, of: map[netip.AddrPort]float64{}, rest: 1}
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
		case s.takes(l):
			asked = append(asked, l)
			s.add(l, f.port)
		default:
			asked, others = append(asked, l), append(others, l)
		}
	}
	s.admit(asked, f.port)
	p.weights = weights(p.to, s.of)
	s.noteRest(f, others)
	return p
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
func (s *share) takes(l leaf) bool {
	if l.svl || l.shortcut != 0 {
		s.notes = append(s.notes, reader.Note{At: l.at, Msg: "the traffic policy local is left out: rules do not say on which node other endpoints are", Hint: `write node of endpoints, and external_traffic_policy = "local"`})
	}
	if !s.begun {
		s.src, s.via, s.begun = l.src, l.shortcut, true
	}
	return l.src == s.src && l.shortcut == s.via
}

// admit lets in the clients that rules lead to these endpoints alone.
func (s *share) admit(leaves []leaf, port uint16) {
	for _, l := range leaves {
		elsewhere := func(to netip.AddrPort) bool { return s.of[netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), port))] == 0 }
		if l.src.IsValid() && !slices.ContainsFunc(l.to, elsewhere) && !slices.Contains(s.ranges, l.src.Masked()) && len(s.ranges) < 1000 {
			s.ranges = append(s.ranges, l.src.Masked())
		}
	}
}

// add gives the endpoints of a leaf their shares of what is left.
func (s *share) add(l leaf, port uint16) {
	part := s.rest * l.chance
	s.rest -= part
	if part <= 1e-9 {
		s.notes = append(s.notes, reader.Note{At: l.at, Msg: fmt.Sprintf("DNAT of port %d to %s is left out: rules before it have all connections", port, l.to[0].Addr())})
		return
	}
	s.hashed = s.hashed || l.persistent
	for _, to := range l.to {
		to = netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), port))
		if _, known := s.of[to]; !known {
			s.to = append(s.to, to)
		}
		s.of[to] += part / float64(len(l.to))
	}
}

// noteRest notes what a service has not, or has more than rules gave it.
func (s *share) noteRest(f *frontend, others []leaf) {
	note := func(at reader.Position, msg, hint string) {
		s.notes = append(s.notes, reader.Note{At: at, Msg: msg, Hint: hint})
	}
	if s.rest > 1e-6 && len(s.to) > 0 {
		note(f.leaves[0].at, fmt.Sprintf("the rules took %.3g %% of connections, and the service takes all", 100*(1-s.rest)), "make what got the others an endpoint, with a weight")
	}
	for _, l := range others {
		for _, to := range l.to {
			if l.src.IsValid() && s.of[netip.AddrPortFrom(to.Addr(), cmp.Or(to.Port(), f.port))] == 0 {
				note(l.at, fmt.Sprintf("DNAT of port %d to %s is left out: only clients of %s get there, and others have another endpoint", f.port, to.Addr(), l.src), "write a service with an address of its own")
				break
			}
		}
	}
}

// weights returns whole numbers that are to each other as shares are, within a fiftieth.
func weights(to []netip.AddrPort, shares map[netip.AddrPort]float64) []uint16 {
	least := 1.0
	for _, a := range to {
		least = min(least, shares[a])
	}
	out := make([]uint16, len(to))
	for scale := 1; scale <= 100; scale++ {
		good := true
		for i, a := range to {
			exact := shares[a] / least * float64(scale)
			out[i] = uint16(min(65535, exact+0.5))
			good = good && float64(out[i]) < exact*1.02 && float64(out[i]) > exact*0.98
		}
		if good {
			break
		}
	}
	return out
}
