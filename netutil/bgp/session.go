package bgp

import (
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// A fault is why there is no session, and when that was noted.
type fault struct {
	text string
	at   time.Time
}

// A session is what the speaker knows of a peer, under sessions.mu.
type session struct {
	peer     Peer
	state    State
	since    time.Time
	err      fault
	explains bool                // err was noted in the present state
	early    fault               // why a session that was not told of yet ended, maybe: GoBGP logs, and tells of states, apart
	end      fault               // why the last established session ended
	open     bool                // GoBGP has this peer
	hops     [families]hop       // as set in GoBGP
	agreed   map[bgp.Family]bool // families that the peer offers
	extended bool                // it takes IPv4 routes with IPv6 next hops
	lost     bool                // an established session has ended: to be opened again
	full     bool                // no more routes of the peer are kept
	asked    time.Time           // when a connection of ours was made, and OPEN sent, that is not answered yet; zero: there is none
	changed  bool                // and OnChange does not know
}

func (ses *session) fault(words string) {
	ses.err, ses.explains = fault{words, time.Now()}, true
}

// A session that is shorter than earlyTime may have ended, as the log says, before its beginning was told; by
// not more than earlyLog.
const earlyTime, earlyLog = 5 * time.Second, time.Second

// endedEarly reports whether early may be why the session that ends at a time has ended.
func (ses *session) endedEarly(at time.Time) bool {
	return at.Sub(ses.since) < earlyTime && ses.since.Sub(ses.early.at) < earlyLog
}

// enter changes the state. What failed before a session was there is no longer of
// interest once it is: both sides connect, and one of two connections is closed.
func (ses *session) enter(state State, at time.Time) {
	if ses.state == Established {
		ses.lost, ses.end = true, ses.err
	}
	if state == Established {
		ses.err = ses.end
	}
	if state != Active {
		ses.asked = time.Time{}
	}
	ses.state, ses.since, ses.explains = state, at, false
}

// agree records what the peer can do, as its OPEN says.
func (ses *session) agree(caps []bgp.ParameterCapabilityInterface) {
	ses.agreed, ses.extended = map[bgp.Family]bool{}, false
	for _, c := range caps {
		switch c := c.(type) {
		case *bgp.CapMultiProtocol:
			ses.agreed[c.CapValue] = true
		case *bgp.CapExtendedNexthop:
			for _, t := range c.Tuples {
				v4 := t.NLRIAFI == bgp.AFI_IP && t.NLRISAFI == bgp.SAFI_UNICAST
				ses.extended = ses.extended || v4 && t.NexthopAFI == bgp.AFI_IP6
			}
		}
	}
}

// takeLost reports, once, whether a session was lost and is not there again.
func (ses *session) takeLost() bool {
	lost := ses.lost && ses.state == Idle
	ses.lost = false
	return lost
}

// takeChanged reports, once, whether OnChange does not know of a change.
func (ses *session) takeChanged() bool {
	changed := ses.changed
	ses.changed = false
	return changed
}

// openPatience is how long a peer has to answer OPEN before that counts as a fault. GoBGP waits for 4 min.
const openPatience = 10 * time.Second

// export returns what others see.
func (ses *session) export(count [families]Family, patience time.Duration) PeerState {
	out := PeerState{
		Address: ses.peer.Address, AS: ses.peer.AS, State: ses.state, Since: ses.since,
		LastError: ses.err.text, LastErrorAt: ses.err.at,
	}
	if ses.state == Active && !ses.asked.IsZero() && time.Since(ses.asked) >= patience {
		out.LastError, out.LastErrorAt = silentWords, ses.asked
	}
	if ses.state == Established {
		for f := range families {
			count[f].Withheld = ses.withheld(f)
		}
		out.IPv4, out.IPv6 = count[ipv4], count[ipv6]
		out.Notice = out.notice()
	}
	return out
}

// withheld says why no route of a family is announced over an established session. A peer that
// offers no family at all has IPv4, RFC 4760 8.
func (ses *session) withheld(f int) string {
	agreed := ses.agreed[gobgpFamilies[f]] || f == ipv4 && len(ses.agreed) == 0
	if !agreed {
		return "the peer does not agree to " + familyNames[f] + " in this session"
	}
	return ses.hops[f].why
}
