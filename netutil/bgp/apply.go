package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// A Route is announced to all peers, with this host as next hop.
type Route struct {
	Prefix netip.Prefix // normally one address, /32 or /128; without host bits or a zone

	// Shutdown marks the route with the community GracefulShutdown, and to peers of our own AS with the
	// local preference 0 besides: routers choose any other one they have, while they still forward by this one.
	Shutdown bool
}

// A routes is a set of routes: what is announced, and whether with Shutdown.
type routes map[netip.Prefix]bool

// newRoutes returns the set of a list, or all that is wrong with it.
func newRoutes(list []Route) (routes, error) {
	set := make(routes, len(list))
	var errs []error
	for _, r := range list {
		p := r.Prefix
		switch _, twice := set[p]; {
		case !p.IsValid() || p != p.Masked() || p.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("route %v: want a prefix without host bits, as 192.0.2.1/32", p))
		case p.Addr().IsMulticast() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast():
			errs = append(errs, fmt.Errorf("route %v: not an address that a router forwards to", p))
		case twice:
			errs = append(errs, fmt.Errorf("route %v is there twice", p))
		default:
			set[p] = r.Shutdown
		}
	}
	return set, errors.Join(errs...)
}

// diff returns what to announce, newly or with other attributes, and what to withdraw, so that have becomes want.
func diff(have, want routes) (announce, withdraw routes) {
	announce, withdraw = routes{}, routes{}
	for p, shutdown := range want {
		if was, ok := have[p]; !ok || was != shutdown {
			announce[p] = shutdown
		}
	}
	for p := range have {
		if _, ok := want[p]; !ok {
			withdraw[p] = false
		}
	}
	return announce, withdraw
}

// settle is how long a change of routes waits for a session that is about to be established.
const settle = time.Second

// A table is what GoBGP was given: routes, and policies with their next hops. It is of the goroutine of Run.
type table struct {
	settle    time.Duration // tests have another, listAddrs too
	listAddrs addrLister
	stop      <-chan struct{} // of the speaker

	have  routes
	hops  map[netip.Addr][families]hop
	stale bool // policies are of other peers
}

// setRoutes changes have to want, in the table of GoBGP, from which peers are told. It returns those that may have missed it.
//
// GoBGP tells a peer all routes when a session is established, and changes to peers in the state established; but the state
// follows a moment after the routes, and a change between the two is lost to this peer for as long as the session lasts: a
// route that it never hears of or, worse, one that it keeps. So changes wait until no session is about to be
// established, and a session that was established meanwhile all the same has to be opened again.
func (t *table) setRoutes(ctx context.Context, srv *server.BgpServer, want routes) (missed []netip.Addr, err error) {
	announce, withdraw := diff(t.have, want)
	if len(announce) == 0 && len(withdraw) == 0 {
		return nil, nil
	}
	before := t.settled(ctx, srv)
	if err := t.announce(srv, announce); err != nil {
		return nil, err
	}
	if err := t.withdraw(srv, withdraw); err != nil {
		return nil, err
	}
	for addr, state := range sessionStates(srv) {
		if before[addr] != api.PeerState_SESSION_STATE_ESTABLISHED && state >= api.PeerState_SESSION_STATE_OPENCONFIRM {
			missed = append(missed, addr)
		}
	}
	return missed, nil
}

// announce adds routes to the table, all at once.
func (t *table) announce(srv *server.BgpServer, announce routes) error {
	list, err := paths(announce)
	if err != nil || len(list) == 0 {
		return err
	}
	if _, err := srv.AddPath(apiutil.AddPathRequest{Paths: list}); err != nil {
		return fmt.Errorf("BGP: announcing %d routes: %w", len(list), err)
	}
	maps.Copy(t.have, announce)
	return nil
}

// withdraw removes routes from the table, all at once.
func (t *table) withdraw(srv *server.BgpServer, withdraw routes) error {
	list, err := paths(withdraw)
	if err != nil || len(list) == 0 {
		return err
	}
	if err := srv.DeletePath(apiutil.DeletePathRequest{Paths: list}); err != nil {
		return fmt.Errorf("BGP: withdrawing %d routes: %w", len(list), err)
	}
	for p := range withdraw {
		delete(t.have, p)
	}
	return nil
}

// paths returns routes as GoBGP wants them.
func paths(set routes) (list []*apiutil.Path, err error) {
	for p, shutdown := range set {
		one, err := path(p, shutdown)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// settled returns the states of all peers once none is in OpenConfirm, settle has passed, or the speaker is to end: who ends it
// may have little time, and routes that are withdrawn before the end are to go first.
func (t *table) settled(ctx context.Context, srv *server.BgpServer) map[netip.Addr]api.PeerState_SessionState {
	end := time.Now().Add(t.settle)
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
		case <-t.stop:
			return states
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sessionStates asks GoBGP for the states that it goes by: what it reports comes before them.
func sessionStates(srv *server.BgpServer) map[netip.Addr]api.PeerState_SessionState {
	return ofPeers(srv, false, func(p *api.Peer) api.PeerState_SessionState { return p.GetState().GetSessionState() })
}

// ofPeers asks GoBGP for something of each peer, also of the routes that it is told if announced is set.
func ofPeers[T any](srv *server.BgpServer, announced bool, of func(*api.Peer) T) map[netip.Addr]T {
	out := map[netip.Addr]T{}
	// An error says that the server has ended, and then it has no peers and no routes.
	_ = srv.ListPeer(context.Background(), &api.ListPeerRequest{EnableAdvertised: announced}, func(p *api.Peer) {
		if addr, err := netip.ParseAddr(p.GetState().GetNeighborAddress()); err == nil {
			out[addr] = of(p)
		}
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

// setPolicies looks up the next hops, and makes GoBGP use them.
func (t *table) setPolicies(ctx context.Context, srv *server.BgpServer, s *sessions) error {
	hops, err := t.resolveHops(s)
	return errors.Join(err, t.useHops(ctx, srv, s, hops))
}

// useHops makes GoBGP use next hops that have changed, also for routes that were announced with others.
func (t *table) useHops(ctx context.Context, srv *server.BgpServer, s *sessions, hops map[netip.Addr][families]hop) error {
	if t.hops != nil && !t.stale && maps.Equal(hops, t.hops) {
		return nil
	}
	if err := srv.SetPolicies(ctx, policies(s.peers, hops)); err != nil {
		return fmt.Errorf("BGP: setting policies: %w", err)
	}
	first := t.hops == nil
	t.hops, t.stale = hops, false
	s.setHops(hops)
	if first {
		return nil
	}
	out := &api.ResetPeerRequest{Address: "all", Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT}
	if err := srv.ResetPeer(ctx, out); err != nil {
		return fmt.Errorf("BGP: announcing again with other next hops: %w", err)
	}
	return nil
}

// resolveHops returns the next hops to all peers. Those that cannot be found out now stay as they are, and are the error.
func (t *table) resolveHops(s *sessions) (map[netip.Addr][families]hop, error) {
	var errs []error
	hops := map[netip.Addr][families]hop{}
	for _, p := range s.peers {
		found, err := t.listAddrs.nextHops(p, s.extended(p.Address))
		if err != nil {
			errs = append(errs, fmt.Errorf("BGP: looking for the next hop of %v: %w", p.Address, err))
		}
		if known, ok := t.hops[p.Address]; ok && err != nil {
			found = known
		}
		hops[p.Address] = found
	}
	return hops, errors.Join(errs...)
}
