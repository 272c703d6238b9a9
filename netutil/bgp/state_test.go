package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// GoBGP may log why a session ended before it tells that there was one: a busy machine has both orders.
func TestEndIsLoggedEarly(t *testing.T) {
	const shutdown = "the peer closed the session: 6/2, cease, administrative shutdown"
	for _, tt := range []struct {
		name        string
		told        State // before the log
		comes, ends time.Duration
		want        string
	}{
		{"at once", OpenConfirm, 0, time.Millisecond, shutdown},
		{"at once, and nothing was told", Idle, 0, time.Millisecond, shutdown},
		{"an hour later", OpenConfirm, 0, time.Hour, ""},
		{"of another attempt", Idle, time.Minute, time.Minute + time.Millisecond, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer := Peer{Address: netip.MustParseAddr("192.0.2.254"), AS: 64500}
			s := newSessions(Config{AS: 64512, Peers: []Peer{peer}, Log: slog.New(slog.DiscardHandler)}, make(chan struct{}, 1))
			s.byPeer[peer.Address].state = tt.told
			begin := time.Now()
			s.recordFault(peer.Address, message{text: textReceived, code: 6, subcode: 2})
			enter(s, peer, bgp.BGP_FSM_OPENCONFIRM, begin.Add(tt.comes))
			enter(s, peer, bgp.BGP_FSM_ESTABLISHED, begin.Add(tt.comes))
			if st := s.state(nil)[0]; st.State != Established || st.LastError != "" {
				t.Errorf("with a session: %+v", st)
			}
			enter(s, peer, bgp.BGP_FSM_IDLE, begin.Add(tt.ends))
			if st := s.state(nil)[0]; st.State != Idle || st.LastError != tt.want {
				t.Errorf("at its end: %+v; want %q", st, tt.want)
			}
		})
	}
}

func enter(s *sessions, p Peer, state bgp.FSMState, at time.Time) {
	e := &apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE}
	e.Peer.State.NeighborAddress, e.Peer.State.SessionState = p.Address, state
	e.Peer.State.DisconnectReason = api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED
	s.onPeer(e, at)
}
