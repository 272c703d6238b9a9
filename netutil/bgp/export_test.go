package bgp

import (
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// Best is what nextHops takes for the other family.
var Best = best

// Announced returns the number of routes of both families.
func (p PeerState) Announced() int { return p.IPv4.Announced + p.IPv6.Announced }

// LogTrouble is what is done with the error of each attempt.
func (s *Speaker) LogTrouble(err error) { s.logTrouble(err) }

// SetSettle sets how long a change of routes waits for a session, before Run.
func (s *Speaker) SetSettle(d time.Duration) { s.table.settle = d }

// SetListAddrs sets how the addresses of an interface are listed, before Run.
func (s *Speaker) SetListAddrs(f func(netlink.Link, int) ([]netlink.Addr, error)) {
	s.table.listAddrs = f
}

// Full reports whether no more routes of a router are kept.
func (s *Speaker) Full(router netip.Addr) bool {
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	return s.sessions.byPeer[router].full
}

// SetMostReceived sets how many routes of a router are kept, before Run.
func (s *Speaker) SetMostReceived(n int) { s.sessions.mostReceived = n }

// SetOpenPatience sets how long a router has to answer an OPEN, before Run.
func (s *Speaker) SetOpenPatience(d time.Duration) { s.sessions.openPatience = d }
