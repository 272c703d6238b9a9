package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/server"

	"svcproxy.dev/svcproxy/internal/wake"
)

// SetPeers replaces the peers, also while the speaker runs. Sessions with those that stay as they are go on, and a change of
// communities, MED or local preference needs no new session. The session with a peer that is left out ends, and the peer removes the
// routes at once. SetPeers reports false, and changes nothing, where only another speaker can keep routes or sessions: graceful restart is
// used and the session with a peer is established that needs a new one, or a peer has no password that once had one, also where it was left
// out meanwhile. It does not wait for anything.
func (s *Speaker) SetPeers(list []Peer) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := s.cfg
	cfg.Peers = list
	if err := cfg.Validate(); err != nil {
		return false, fmt.Errorf("BGP: %w", err)
	}
	cfg = cfg.withDefaults()
	for _, p := range cfg.Peers {
		if s.keepsKey(p) || s.keepsRoutes(p) {
			return false, nil
		}
	}
	s.peers = cfg.Peers
	s.noteKeys(cfg.Peers)
	wake.Once(s.wake)
	return true, nil
}

// keepsKey reports whether the listening socket of GoBGP has a key for a peer without a password: it never loses one.
func (s *Speaker) keepsKey(p Peer) bool { return p.Password == "" && s.keys[p.Address] }

// keepsRoutes reports whether a peer, which needs a new session, would lose routes that it keeps for another speaker.
func (s *Speaker) keepsRoutes(p Peer) bool {
	ses := s.sessions[p.Address]
	return ses != nil && !ses.peer.sameSession(p) && s.cfg.GracefulRestart > 0 && ses.state == Established
}

// noteKeys notes to which addresses GoBGP is given a key.
func (s *Speaker) noteKeys(peers []Peer) {
	for _, p := range peers {
		if p.Password != "" {
			s.keys[p.Address] = true
		}
	}
}

// sameSession reports whether a session with p does for o too.
func (p Peer) sameSession(o Peer) bool {
	p.Communities, p.MED, p.LocalPreference = nil, 0, 0
	o.Communities, o.MED, o.LocalPreference = nil, 0, 0
	return reflect.DeepEqual(p, o)
}

// usePeers makes the peers those of the last SetPeers. What fails is tried again.
func (s *Speaker) usePeers(ctx context.Context, srv *server.BgpServer) error {
	s.mu.Lock()
	list := s.peers
	s.mu.Unlock()
	if list == nil {
		return nil
	}
	var errs []error
	for _, p := range s.which(func(ses *session) bool { return ses.open && !slices.ContainsFunc(list, ses.peer.sameSession) }) {
		errs = append(errs, s.remove(ctx, srv, p))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sessions := make(map[netip.Addr]*session)
	for _, p := range list {
		ses := s.sessions[p.Address]
		if ses == nil || !ses.peer.sameSession(p) {
			ses = &session{state: Idle, since: time.Now()}
		}
		ses.peer = p
		sessions[p.Address] = ses
	}
	s.cfg.Peers, s.sessions, s.stale = list, sessions, true
	if reflect.DeepEqual(s.peers, list) { // else there was another SetPeers
		s.peers = nil
	}
	return nil
}
