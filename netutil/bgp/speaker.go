package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"

	"svcproxy.dev/svcproxy/internal/wake"
)

// look is how often next hops are looked up again, and what failed is tried again.
const look = 5 * time.Second

// A Speaker announces routes to peers. Its methods may be called from any goroutine.
type Speaker struct {
	cfg     Config // with defaults
	wake    chan struct{}
	stop    chan struct{} // closed by Stop
	started chan struct{} // closed when Run is called
	ended   chan struct{} // closed when it has returned

	stopOnce sync.Once
	graceful bool // read when stop is closed

	sessions *sessions

	mu     sync.Mutex
	want   routes // nil: SetRoutes has not been called
	server *server.BgpServer

	// Of the goroutine of Run.
	table   *table
	trouble string              // as logged
	many    map[netip.Addr]bool // peers of which it is logged that they send many routes
}

// New returns a speaker, or all that is wrong with cfg, joined. It opens nothing.
func New(cfg Config) (*Speaker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("BGP: %w", err)
	}
	s := &Speaker{
		cfg: cfg.withDefaults(), wake: make(chan struct{}, 1), stop: make(chan struct{}),
		started: make(chan struct{}), ended: make(chan struct{}),
	}
	s.sessions = newSessions(s.cfg, s.wake)
	s.table = &table{settle: settle, listAddrs: netlink.AddrList, stop: s.stop, have: routes{}}
	return s, nil
}

// SetRoutes replaces what is announced: peers hear of the differences only, within milliseconds
// where a session is established. The first call opens the sessions, so its set must be
// complete. It may be called before Run; it does not wait for anything. On an error, which names all
// routes that cannot be announced, nothing has changed.
func (s *Speaker) SetRoutes(list []Route) error {
	set, err := newRoutes(list)
	if err != nil {
		return fmt.Errorf("BGP: %w", err)
	}
	s.mu.Lock()
	s.want = set
	s.mu.Unlock()
	wake.Once(s.wake)
	return nil
}

// SetPeers replaces the peers, also while the speaker runs. Sessions with those that stay as they are go on, and a change of
// communities, MED or local preference needs no new session. The session with a peer that is left out ends, and the peer removes the
// routes at once. SetPeers reports false, and changes nothing, where only another speaker can keep routes or sessions: graceful restart is
// used and the session with a peer is established that needs a new one, or a peer has no password that once had one, also where it was left
// out meanwhile. It does not wait for anything.
func (s *Speaker) SetPeers(list []Peer) (bool, error) {
	cfg := s.cfg
	cfg.Peers = list
	if err := cfg.Validate(); err != nil {
		return false, fmt.Errorf("BGP: %w", err)
	}
	return s.sessions.offer(cfg.withDefaults().Peers), nil
}

// Stop ends Run, and returns when it has returned. With graceful, and with peers that agreed to
// graceful restart, connections are cut without a NOTIFICATION, and these peers keep the routes
// for Config.GracefulRestart. Else peers remove them at once.
func (s *Speaker) Stop(graceful bool) {
	s.stopOnce.Do(func() {
		s.graceful = graceful
		close(s.stop)
	})
	select {
	case <-s.started:
		<-s.ended
	default:
	}
}

// Run listens, holds the sessions, and returns when ctx ends or Stop is called: nil, or why it could not
// start. The end of ctx is a graceful stop. It can be called once.
func (s *Speaker) Run(ctx context.Context) error {
	close(s.started)
	defer close(s.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := slog.New(newTap(s.cfg.Log.Handler(), s.sessions.recordFault, s.sessions.isFull))
	srv := server.NewBgpServer(server.LoggerOption(quiet, nil))
	go srv.Serve()
	if err := s.start(ctx, srv); err != nil {
		s.end(srv, false)
		return err
	}
	told := make(chan struct{})
	go s.reportChanges(ctx, told)
	graceful := s.loop(ctx, srv)
	cancel()
	s.end(srv, graceful)
	<-told
	return nil
}

// start makes GoBGP listen, and refuse everything.
func (s *Speaker) start(ctx context.Context, srv *server.BgpServer) error {
	if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: s.cfg.global()}); err != nil {
		return fmt.Errorf("BGP: listening at port %d: %w", s.cfg.ListenPort, err)
	}
	hops, _ := s.table.resolveHops(s.sessions) // reconcile looks again, and tells what is wrong
	if err := s.table.useHops(ctx, srv, s.sessions, hops); err != nil {
		return err
	}
	for _, a := range assignments() {
		if err := srv.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: a}); err != nil {
			return fmt.Errorf("BGP: assigning policy %s: %w", a.Policies[0].Name, err)
		}
	}
	events := server.WatchEventMessageCallbacks{OnPeerUpdate: s.sessions.onPeer}
	if err := srv.WatchEvent(ctx, events, server.WatchPeer()); err != nil {
		return fmt.Errorf("BGP: watching peers: %w", err)
	}
	s.mu.Lock()
	s.server = srv
	s.mu.Unlock()
	return nil
}

// loop does what is to be done until the end, and returns whether that is graceful.
func (s *Speaker) loop(ctx context.Context, srv *server.BgpServer) bool {
	again := time.NewTicker(look)
	defer again.Stop()
	for {
		if err := s.reconcile(ctx, srv); ctx.Err() == nil {
			s.logTrouble(err)
			s.logReceived()
		}
		select {
		case <-ctx.Done():
			return true
		case <-s.stop:
			return s.graceful
		case <-s.wake:
		case <-again.C:
		}
	}
}

// logTrouble logs what keeps us from what is wanted when it is new, and that it is over.
func (s *Speaker) logTrouble(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == s.trouble:
	case err != nil:
		s.cfg.Log.Error("BGP speaker failed to start; retrying", "err", err, "every", look)
	default:
		s.cfg.Log.Info("BGP recovered", "err", s.trouble)
	}
	s.trouble = text
}

// reconcile makes GoBGP hold what is wanted. Nothing is done before the first SetRoutes.
func (s *Speaker) reconcile(ctx context.Context, srv *server.BgpServer) error {
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if want == nil {
		return nil
	}
	return errors.Join(s.usePeers(ctx, srv), s.table.setPolicies(ctx, srv, s.sessions), s.setRoutes(ctx, srv, want), s.closeLost(ctx, srv), s.open(ctx, srv))
}

// usePeers makes the peers those of the last SetPeers. What fails is tried again.
func (s *Speaker) usePeers(ctx context.Context, srv *server.BgpServer) error {
	list := s.sessions.offered()
	if list == nil {
		return nil
	}
	gone := func(ses *session) bool { return ses.open && !slices.ContainsFunc(list, ses.peer.sameSession) }
	if err := s.remove(ctx, srv, s.sessions.which(gone)); err != nil {
		return err
	}
	s.sessions.use(list)
	s.table.stale = true
	return nil
}

// setRoutes makes GoBGP hold routes, and opens sessions again that may have missed a change.
func (s *Speaker) setRoutes(ctx context.Context, srv *server.BgpServer, want routes) error {
	missed, err := s.table.setRoutes(ctx, srv, want)
	if err != nil {
		return err
	}
	return s.remove(ctx, srv, s.sessions.which(func(ses *session) bool { return slices.Contains(missed, ses.peer.Address) }))
}

// open makes GoBGP hold sessions with peers that it does not have.
func (s *Speaker) open(ctx context.Context, srv *server.BgpServer) error {
	var errs []error
	for _, p := range s.sessions.which(func(ses *session) bool { return !ses.open }) {
		if err := srv.AddPeer(ctx, &api.AddPeerRequest{Peer: s.cfg.neighbor(p)}); err != nil {
			errs = append(errs, fmt.Errorf("BGP: opening the session with %v: %w", p.Address, err))
			continue
		}
		s.sessions.setOpen(p, true)
	}
	return errors.Join(errs...)
}

// closeLost has sessions that were lost opened again, as GoBGP cannot be left to it, for two reasons. It says that forwarding was
// preserved only in the first OPEN to a peer; a router that keeps routes over a restart would remove ours at any other, and
// have none until it has heard them again. And where both sides had connected, GoBGP opens a connection of its own before the five
// seconds in which it takes none, and looks at it only after them: a router whose hold time is shorter has closed it by then,
// again and again.
func (s *Speaker) closeLost(ctx context.Context, srv *server.BgpServer) error {
	return s.remove(ctx, srv, s.sessions.which((*session).takeLost))
}

// remove makes GoBGP forget peers, which open has it learn again.
func (s *Speaker) remove(ctx context.Context, srv *server.BgpServer, peers []Peer) error {
	var errs []error
	for _, p := range peers {
		if err := srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Address.String()}); err != nil {
			errs = append(errs, fmt.Errorf("BGP: closing the session with %v: %w", p.Address, err))
			continue
		}
		s.sessions.setOpen(p, false)
	}
	return errors.Join(errs...)
}

// end stops GoBGP and waits for its goroutines.
func (s *Speaker) end(srv *server.BgpServer, graceful bool) {
	s.sessions.end()
	s.mu.Lock()
	s.server = nil
	s.mu.Unlock()
	// The only error is that it does not run, and then it is as it should be.
	_ = srv.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: graceful})
	srv.Stop() // what StopBgp leaves: the server for BFD, which is not used and has a goroutine
	s.sessions.idle()
}

// reportChanges calls OnChange until ctx ends.
func (s *Speaker) reportChanges(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.sessions.changes:
		}
		changed := s.sessions.which((*session).takeChanged)
		if s.cfg.OnChange == nil {
			continue
		}
		for _, st := range s.State() {
			if slices.ContainsFunc(changed, func(p Peer) bool { return p.Address == st.Address }) {
				s.cfg.OnChange(st)
			}
		}
	}
}

// State returns the state of each peer, in the order of Config.Peers.
func (s *Speaker) State() []PeerState { return s.sessions.state(s.counts(true)) }

// Brief is State without numbers of routes and Notice. It waits for nothing, however busy sessions are.
func (s *Speaker) Brief() []PeerState { return s.sessions.state(nil) }

// counts asks GoBGP for the numbers of routes; none while it does not run. Those of announced
// routes, which take longer, only if they are wanted.
func (s *Speaker) counts(announced bool) map[netip.Addr][families]Family {
	s.mu.Lock()
	srv := s.server
	s.mu.Unlock()
	if srv == nil {
		return nil
	}
	return ofPeers(srv, announced, countsOf)
}

// logReceived logs which peers send many routes when that begins, and when it is over.
func (s *Speaker) logReceived() {
	many := map[netip.Addr]bool{}
	list := s.sessions.state(s.counts(false))
	s.sessions.markFull(list)
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
