package bgp

import (
	"context"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"svcproxy.dev/svcproxy/internal/wake"
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

// A session is what the speaker knows of a peer, under Speaker.mu.
type session struct {
	peer     Peer
	state    State
	since    time.Time
	err      string
	errAt    time.Time
	explains bool   // err was noted in the present state
	early    string // why a session that was not told of yet ended, maybe: GoBGP logs, and tells of states, apart
	earlyAt  time.Time
	endErr   string // why the last established session ended
	endAt    time.Time
	open     bool                // GoBGP has this peer
	hops     [families]hop       // as set in GoBGP
	agreed   map[bgp.Family]bool // families that the peer offers
	extended bool                // it takes IPv4 routes with IPv6 next hops
	lost     bool                // an established session has ended: to be opened again
	full     bool                // no more routes of the peer are kept
	asked    time.Time           // when a connection of ours was made, and OPEN sent, that is not answered yet; zero: there is none
	changed  bool                // and OnChange does not know
}

// note records a fault that GoBGP logged.
func (s *Speaker) note(peer netip.Addr, m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.sessions[peer.Unmap()]
	if ses == nil || s.ending {
		return
	}
	if ses.asked = (time.Time{}); m.text == textOpenSent {
		ses.asked = time.Now()
		return
	}
	if ses.state == Established && m.attempt() {
		return
	}
	ses.fault(m.words(s.cfg.AS, ses.peer))
	if ses.state != Established && !m.attempt() {
		ses.early, ses.earlyAt = ses.err, ses.errAt
	}
	s.announceChange(ses)
}

func (ses *session) fault(words string) {
	ses.err, ses.errAt, ses.explains = words, time.Now(), true
}

// announceChange has OnChange called.
func (s *Speaker) announceChange(ses *session) {
	ses.changed = true
	wake.Once(s.changes)
}

// onPeer records a change of state that GoBGP reports.
func (s *Speaker) onPeer(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	st := e.Peer.State
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.sessions[st.NeighborAddress.Unmap()]
	if ses == nil || s.ending || ses.state == states[st.SessionState] {
		return
	}
	was := ses.state
	words := endWords(was, st.DisconnectReason, s.cfg.AS)
	if words == "" && was == Established && ses.endedEarly(at) {
		words = ses.early
	}
	if words != "" && !ses.explains {
		ses.fault(words)
	}
	ses.enter(states[st.SessionState], at)
	if ses.state == OpenConfirm || ses.state == Established {
		ses.agree(st.RemoteCap)
	}
	s.logChange(ses, was)
	s.announceChange(ses)
	wake.Once(s.wake)
}

// A session that is shorter than earlyTime may have ended, as the log says, before its beginning was told; by
// not more than earlyLog.
const earlyTime, earlyLog = 5 * time.Second, time.Second

// endedEarly reports whether early may be why the session that ends at a time has ended.
func (ses *session) endedEarly(at time.Time) bool {
	return at.Sub(ses.since) < earlyTime && ses.since.Sub(ses.earlyAt) < earlyLog
}

// enter changes the state. What failed before a session was there is no longer of
// interest once it is: both sides connect, and one of two connections is closed.
func (ses *session) enter(state State, at time.Time) {
	if ses.state == Established {
		ses.lost, ses.endErr, ses.endAt = true, ses.err, ses.errAt
	}
	if state == Established {
		ses.err, ses.errAt = ses.endErr, ses.endAt
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

// logChange logs that a session is there, or is no longer.
func (s *Speaker) logChange(ses *session, was State) {
	log := s.cfg.Log.With("peer", ses.peer.Address, "as", ses.peer.AS)
	switch {
	case ses.state == Established:
		log.Info("BGP session established")
	case was == Established:
		log.Warn("BGP session lost", "err", ses.err)
	}
}

// State returns the state of each peer, in the order of Config.Peers.
func (s *Speaker) State() []PeerState { return s.state(s.counts(true)) }

// Brief is State without numbers of routes and Notice. It waits for nothing, however busy sessions are.
func (s *Speaker) Brief() []PeerState { return s.state(nil) }

func (s *Speaker) state(counts map[netip.Addr][families]Family) []PeerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]PeerState, len(s.cfg.Peers))
	for i, p := range s.cfg.Peers {
		out[i] = s.sessions[p.Address].export(counts[p.Address], s.openPatience)
	}
	return out
}

// openPatience is how long a peer has to answer OPEN before that counts as a fault. GoBGP waits for 4 min.
const openPatience = 10 * time.Second

// export returns what others see.
func (ses *session) export(count [families]Family, patience time.Duration) PeerState {
	out := PeerState{
		Address: ses.peer.Address, AS: ses.peer.AS, State: ses.state, Since: ses.since,
		LastError: ses.err, LastErrorAt: ses.errAt,
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

// counts asks GoBGP for the numbers of routes; none while it does not run. Those of announced
// routes, which take longer, only if they are wanted.
func (s *Speaker) counts(announced bool) map[netip.Addr][families]Family {
	s.mu.Lock()
	server := s.server
	s.mu.Unlock()
	out := map[netip.Addr][families]Family{}
	if server == nil {
		return out
	}
	// An error says that the server has ended since, and then there are no routes.
	_ = server.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: announced}, func(p *api.Peer) {
		addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil {
			return
		}
		out[addr] = countsOf(p)
	})
	return out
}

func countsOf(p *api.Peer) (count [families]Family) {
	for _, a := range p.GetAfiSafis() {
		f := ipv4
		if a.GetState().GetFamily().GetAfi() == api.Family_AFI_IP6 {
			f = ipv6
		}
		count[f].Announced = int(a.GetState().GetAdvertised())
		count[f].Refused = int(a.GetState().GetReceived())
	}
	return count
}
