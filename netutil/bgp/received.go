package bgp

import (
	"fmt"
	"log/slog"
	"net/netip"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// ManyReceived is from how many routes on Notice tells of those that a router sends. GoBGP keeps each, in some
// 350 to 550 bytes. There is no limit at which a session is ended: that takes our
// routes from the router, which is worse than the memory that a mistake there costs here.
const ManyReceived = 10_000

// MostReceived is about how many routes of a router are kept, so that a flood takes 55 MB at most, and some more
// until it is noticed, within the time of look. Those that come after are neither kept nor counted.
const MostReceived = 100_000

// placeholder stands for attributes that are not kept.
var placeholder = packet.NewPathAttributeOrigin(packet.BGP_ORIGIN_ATTR_TYPE_INCOMPLETE)

// nobodys are routes that stand for those that are not kept. They are refused like all others.
var nobodys = [families]packet.PathNLRI{mustNLRI("0.0.0.0/32"), mustNLRI("::/128")}

func mustNLRI(prefix string) packet.PathNLRI {
	nlri, err := packet.NewIPAddrPrefix(netip.MustParsePrefix(prefix))
	if err != nil {
		panic(err) // both are prefixes
	}
	return packet.PathNLRI{NLRI: nlri}
}

// strip takes from an UPDATE what GoBGP would keep of it although all of its routes are refused: large attributes and, where
// the peer is full, the routes. GoBGP has no setting for that. It logs each UPDATE just before it makes routes of it, with the slices that it is about to read.
// Withdrawn routes stay, and so does what validation and the next hop need.
func strip(r slog.Record, full bool) {
	r.Attrs(func(a slog.Attr) bool {
		switch list := a.Value.Any().(type) {
		case []packet.PathAttributeInterface:
			stripAttributes(list, full)
		case []packet.PathNLRI:
			if full && a.Key == "nlri" {
				for i := range list {
					list[i] = nobodys[ipv4]
				}
			}
		}
		return true
	})
}

func stripAttributes(list []packet.PathAttributeInterface, full bool) {
	for i, a := range list {
		switch a := a.(type) {
		case *packet.PathAttributeOrigin, *packet.PathAttributeNextHop, *packet.PathAttributeMpUnreachNLRI:
		case *packet.PathAttributeMpReachNLRI:
			if full && len(a.Value) > 0 {
				f := ipv4
				if a.AFI == packet.AFI_IP6 {
					f = ipv6
				}
				a.Value = []packet.PathNLRI{nobodys[f]}
			}
		default:
			list[i] = placeholder
		}
	}
}

// isFull reports whether no more routes of a peer are to be kept.
func (s *Speaker) isFull(peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.sessions[peer]
	return ses != nil && ses.full
}

// noteFull notes of which peers no more routes are to be kept.
func (s *Speaker) noteFull(list []PeerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		if ses := s.sessions[p.Address]; ses != nil {
			ses.full = p.Refused() >= s.mostReceived
		}
	}
}

// notice says what an operator should do about an established session; empty: nothing.
func (p PeerState) notice() string {
	if p.State != Established || p.Refused() < ManyReceived {
		return ""
	}
	if p.Refused() >= MostReceived {
		return fmt.Sprintf("sends %d routes or more, which are refused and take memory: tell it to send none", MostReceived)
	}
	return "sends many routes, which are refused and take memory: tell it to send none"
}

// logReceived logs which peers send many routes when that begins, and when it is over.
func (s *Speaker) logReceived() {
	many := map[netip.Addr]bool{}
	list := s.state(s.counts(false))
	s.noteFull(list)
	for _, p := range list {
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
