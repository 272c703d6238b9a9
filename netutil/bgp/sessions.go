package bgp

import (
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/osrg/gobgp/v4/pkg/apiutil"

	"svcproxy.dev/svcproxy/internal/wake"
)

// sessions are what is known of all peers, as GoBGP reports it. Its methods may be called from any goroutine.
type sessions struct {
	as      uint32
	restart bool // peers are asked to keep routes
	log     *slog.Logger
	wake    chan struct{} // of the speaker
	changes chan struct{} // sessions have changed

	mostReceived int
	openPatience time.Duration

	mu     sync.Mutex
	byPeer map[netip.Addr]*session
	peers  []Peer              // in use; changed by the goroutine of Run only
	next   []Peer              // of the last SetPeers, with defaults; nil: they are in use
	keys   map[netip.Addr]bool // addresses of all peers that have ever had a password
	ending bool                // what GoBGP reports is of our own doing
}

// newSessions returns those of a speaker with a configuration with defaults.
func newSessions(cfg Config, wake chan struct{}) *sessions {
	s := &sessions{
		as: cfg.AS, restart: cfg.GracefulRestart > 0, log: cfg.Log, wake: wake, changes: make(chan struct{}, 1),
		mostReceived: MostReceived, openPatience: openPatience, keys: map[netip.Addr]bool{},
	}
	s.use(cfg.Peers)
	s.recordKeys(cfg.Peers)
	return s
}

// recordFault records a fault that GoBGP logged.
func (s *sessions) recordFault(peer netip.Addr, m message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byPeer[peer.Unmap()]
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
	ses.fault(m.words(s.as, ses.peer))
	if ses.state != Established && !m.attempt() {
		ses.early = ses.err
	}
	s.announceChange(ses)
}

// announceChange has OnChange called.
func (s *sessions) announceChange(ses *session) {
	ses.changed = true
	wake.Once(s.changes)
}

// onPeer records a change of state that GoBGP reports.
func (s *sessions) onPeer(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	st := e.Peer.State
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byPeer[st.NeighborAddress.Unmap()]
	if ses == nil || s.ending || ses.state == states[st.SessionState] {
		return
	}
	was := ses.state
	words := endWords(was, st.DisconnectReason, s.as)
	if words == "" && was == Established && ses.endedEarly(at) {
		words = ses.early.text
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

// logChange logs that a session is there, or is no longer.
func (s *sessions) logChange(ses *session, was State) {
	log := s.log.With("peer", ses.peer.Address, "as", ses.peer.AS)
	switch {
	case ses.state == Established:
		log.Info("BGP session established")
	case was == Established:
		log.Warn("BGP session lost", "err", ses.err.text)
	}
}

// each calls f with each session, in the order of the peers.
func (s *sessions) each(f func(*session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		f(s.byPeer[p.Address])
	}
}

func (s *sessions) state(counts map[netip.Addr][families]Family) (out []PeerState) {
	s.each(func(ses *session) { out = append(out, ses.export(counts[ses.peer.Address], s.openPatience)) })
	return out
}

// isFull reports whether no more routes of a peer are to be kept.
func (s *sessions) isFull(peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses := s.byPeer[peer]
	return ses != nil && ses.full
}

// markFull notes of which peers no more routes are to be kept.
func (s *sessions) markFull(list []PeerState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		if ses := s.byPeer[p.Address]; ses != nil {
			ses.full = p.Refused() >= s.mostReceived
		}
	}
}

func (s *sessions) which(f func(*session) bool) (peers []Peer) {
	s.each(func(ses *session) {
		if f(ses) {
			peers = append(peers, ses.peer)
		}
	})
	return peers
}

func (s *sessions) setOpen(p Peer, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byPeer[p.Address].open = open
}

// offer notes what the peers are to be, and reports whether they can be without another speaker.
func (s *sessions) offer(list []Peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range list {
		if s.keepsKey(p) || s.keepsRoutes(p) {
			return false
		}
	}
	s.next = list
	s.recordKeys(list)
	wake.Once(s.wake)
	return true
}

// keepsKey reports whether the listening socket of GoBGP has a key for a peer without a password: it never loses one.
func (s *sessions) keepsKey(p Peer) bool { return p.Password == "" && s.keys[p.Address] }

// keepsRoutes reports whether a peer, which needs a new session, would lose routes that it keeps for another speaker.
func (s *sessions) keepsRoutes(p Peer) bool {
	ses := s.byPeer[p.Address]
	return ses != nil && !ses.peer.sameSession(p) && s.restart && ses.state == Established
}

// recordKeys notes to which addresses GoBGP is given a key.
func (s *sessions) recordKeys(peers []Peer) {
	for _, p := range peers {
		if p.Password != "" {
			s.keys[p.Address] = true
		}
	}
}

// offered returns the peers of the last SetPeers; nil: they are in use.
func (s *sessions) offered() []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// use makes the peers those of a list.
func (s *sessions) use(list []Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	byPeer := make(map[netip.Addr]*session)
	for _, p := range list {
		ses := s.byPeer[p.Address]
		if ses == nil || !ses.peer.sameSession(p) {
			ses = &session{state: Idle, since: time.Now()}
		}
		ses.peer = p
		byPeer[p.Address] = ses
	}
	s.peers, s.byPeer = list, byPeer
	if reflect.DeepEqual(s.next, list) { // else there was another SetPeers
		s.next = nil
	}
}

// extended reports whether a peer takes IPv4 routes with IPv6 next hops.
func (s *sessions) extended(peer netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPeer[peer].extended
}

func (s *sessions) setHops(hops map[netip.Addr][families]hop) {
	s.each(func(ses *session) { ses.hops = hops[ses.peer.Address] })
}

// end has what GoBGP reports from now on ignored.
func (s *sessions) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
}

// idle records that there are no sessions any more.
func (s *sessions) idle() {
	s.each(func(ses *session) {
		if ses.state != Idle {
			ses.enter(Idle, time.Now())
		}
	})
}

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
