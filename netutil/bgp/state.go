package bgp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A State is one of the session, RFC 4271 8.2.2.
type State string

// The states. GoBGP connects in Active, so Connect does not occur; and a
// connection of ours is in Active until the peer's OPEN has come.
const (
	Idle        State = "idle"        // before the first SetRoutes, and for five seconds after an attempt that failed
	Connect     State = "connect"     // waiting for TCP
	Active      State = "active"      // connecting, and waiting to be connected to
	OpenSent    State = "opensent"    // waiting for the peer's OPEN
	OpenConfirm State = "openconfirm" // waiting for the peer to agree to ours
	Established State = "established" // routes are announced
)

var states = map[bgp.FSMState]State{
	bgp.BGP_FSM_IDLE: Idle, bgp.BGP_FSM_CONNECT: Connect, bgp.BGP_FSM_ACTIVE: Active,
	bgp.BGP_FSM_OPENSENT: OpenSent, bgp.BGP_FSM_OPENCONFIRM: OpenConfirm, bgp.BGP_FSM_ESTABLISHED: Established,
}

// A PeerState is what is known of a session.
type PeerState struct {
	Address     netip.Addr
	AS          uint32 // as configured
	State       State
	Since       time.Time // of State
	LastError   string    // why there is no session or, where there is one, why the one before ended; or ""
	LastErrorAt time.Time
	IPv4, IPv6  Family
	Notice      string // what to do about a session that is established all the same; or ""
}

// A Family is the part of a session that is about IPv4 or IPv6 routes.
type Family struct {
	Announced int    // routes the peer gets; 0 without a session
	Refused   int    // routes the peer sends now, all of which are refused
	Withheld  string // why routes of this family are not announced, where there is a session; ""
}

// Refused returns the number of routes of both families.
func (p PeerState) Refused() int { return p.IPv4.Refused + p.IPv6.Refused }

// ManyReceived is from how many routes on Notice tells of those that a router sends. GoBGP keeps each, in some
// 350 to 550 bytes. There is no limit at which a session is ended: that takes our
// routes from the router, which is worse than the memory that a mistake there costs here.
const ManyReceived = 10_000

// MostReceived is about how many routes of a router are kept, so that a flood takes 55 MB at most, and some more
// until it is noticed, within the time of look. Those that come after are neither kept nor counted.
const MostReceived = 100_000

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
