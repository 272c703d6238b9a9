package bgp

import (
	"fmt"
	"net/netip"
)

// ManyReceived is from how many routes on Notice tells of those that a router sends. GoBGP keeps each, in some
// 350 to 550 bytes with short attributes. There is no limit at which a session is ended: that takes our
// routes from the router, which is worse than the memory that a mistake there costs here.
const ManyReceived = 10_000

// notice says what an operator should do about an established session; empty: nothing.
func (p PeerState) notice() string {
	if p.State != Established || p.Refused() < ManyReceived {
		return ""
	}
	return "sends many routes, which are refused and take memory: tell it to send none"
}

// logReceived logs which peers send many routes when that begins, and when it is over.
func (s *Speaker) logReceived() {
	many := map[netip.Addr]bool{}
	for _, p := range s.state(s.counts(false)) {
		log := s.cfg.Log.With("peer", p.Address, "as", p.AS)
		if p.Notice != "" {
			many[p.Address] = true
			if !s.many[p.Address] {
				log.Warn("a router "+p.Notice, "routes", p.Refused())
			}
		} else if s.many[p.Address] {
			log.Info(fmt.Sprintf("a router sends fewer than %d routes again", ManyReceived), "routes", p.Refused())
		}
	}
	s.many = many
}
