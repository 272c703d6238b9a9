package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// settle is how long a change of routes waits for a session that is about to be established.
const settle = time.Second

// setRoutes changes have to want, in the table of GoBGP, from which peers are told.
//
// GoBGP tells a peer all routes when a session is established, and changes to peers in the state established; but the state
// follows a moment after the routes, and a change between the two is lost to this peer for as long as the session lasts: a
// route that it never hears of or, worse, one that it keeps. So changes wait until no session is about to be
// established, and a session that was established meanwhile all the same is opened again.
func (s *Speaker) setRoutes(ctx context.Context, srv *server.BgpServer, want routes) error {
	announce, withdraw := diff(s.have, want)
	if len(announce) == 0 && len(withdraw) == 0 {
		return nil
	}
	before := s.settled(ctx, srv)
	if err := s.announce(srv, announce); err != nil {
		return err
	}
	if err := s.withdraw(srv, withdraw); err != nil {
		return err
	}
	for addr, state := range sessionStates(srv) {
		if before[addr] == api.PeerState_SESSION_STATE_ESTABLISHED || state < api.PeerState_SESSION_STATE_OPENCONFIRM {
			continue
		}
		if err := s.remove(ctx, srv, s.sessions[addr].peer); err != nil {
			return err
		}
	}
	return nil
}

// announce adds routes to the table, all at once.
func (s *Speaker) announce(srv *server.BgpServer, announce routes) error {
	r := apiutil.AddPathRequest{}
	for p, shutdown := range announce {
		one, err := path(p, shutdown)
		if err != nil {
			return err
		}
		r.Paths = append(r.Paths, one)
	}
	if len(r.Paths) == 0 {
		return nil
	}
	if _, err := srv.AddPath(r); err != nil {
		return fmt.Errorf("BGP: announcing %d routes: %w", len(r.Paths), err)
	}
	for p, shutdown := range announce {
		s.have[p] = shutdown
	}
	return nil
}

// withdraw removes routes from the table, all at once.
func (s *Speaker) withdraw(srv *server.BgpServer, withdraw []netip.Prefix) error {
	r := apiutil.DeletePathRequest{}
	for _, p := range withdraw {
		one, err := path(p, false)
		if err != nil {
			return err
		}
		r.Paths = append(r.Paths, one)
	}
	if len(r.Paths) == 0 {
		return nil
	}
	if err := srv.DeletePath(r); err != nil {
		return fmt.Errorf("BGP: withdrawing %d routes: %w", len(r.Paths), err)
	}
	for _, p := range withdraw {
		delete(s.have, p)
	}
	return nil
}

// settled returns the states of all peers once none is in OpenConfirm, settle has passed, or the speaker is to end: who ends it
// may have little time, and routes that are withdrawn before the end are to go first.
func (s *Speaker) settled(ctx context.Context, srv *server.BgpServer) map[netip.Addr]api.PeerState_SessionState {
	end := time.Now().Add(s.settle)
	for {
		states := sessionStates(srv)
		soon := false
		for _, st := range states {
			soon = soon || st == api.PeerState_SESSION_STATE_OPENCONFIRM
		}
		if !soon || time.Now().After(end) {
			return states
		}
		select {
		case <-ctx.Done():
			return states
		case <-s.stop:
			return states
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sessionStates asks GoBGP for the states that it goes by: what it reports comes before them.
func sessionStates(srv *server.BgpServer) map[netip.Addr]api.PeerState_SessionState {
	out := map[netip.Addr]api.PeerState_SessionState{}
	// An error says that the server has ended, and then it has no peers.
	_ = srv.ListPeer(context.Background(), &api.ListPeerRequest{}, func(p *api.Peer) {
		if addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress()); err == nil {
			out[addr] = p.GetState().GetSessionState()
		}
	})
	return out
}
