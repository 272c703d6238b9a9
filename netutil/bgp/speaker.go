package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	changes chan struct{}
	stop    chan struct{} // closed by Stop
	started chan struct{} // closed when Run is called
	ended   chan struct{} // closed when it has returned

	stopOnce sync.Once
	graceful bool // read when stop is closed

	mu       sync.Mutex
	sessions map[netip.Addr]*session
	want     routes              // nil: SetRoutes has not been called
	peers    []Peer              // of the last SetPeers, with defaults; nil: they are in use
	keys     map[netip.Addr]bool // addresses of all peers that have ever had a password
	server   *server.BgpServer
	ending   bool // what GoBGP reports is of our own doing

	// Of the goroutine of Run.
	settle    time.Duration // tests have another, listAddrs too, and the limits
	listAddrs func(netlink.Link, int) ([]netlink.Addr, error)

	mostReceived int
	openPatience time.Duration

	have    routes
	hops    map[netip.Addr][families]hop
	stale   bool                // policies are of other peers
	trouble string              // as logged
	many    map[netip.Addr]bool // peers of which it is logged that they send many routes
}

// New returns a speaker, or all that is wrong with cfg, joined. It opens nothing.
func New(cfg Config) (*Speaker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("BGP: %w", err)
	}
	s := &Speaker{
		cfg: cfg.withDefaults(), settle: settle, listAddrs: netlink.AddrList, mostReceived: MostReceived, openPatience: openPatience,
		have: routes{}, sessions: map[netip.Addr]*session{}, keys: map[netip.Addr]bool{},
		wake: make(chan struct{}, 1), changes: make(chan struct{}, 1), stop: make(chan struct{}),
		started: make(chan struct{}), ended: make(chan struct{}),
	}
	for _, p := range s.cfg.Peers {
		s.sessions[p.Address] = &session{peer: p, state: Idle, since: time.Now()}
	}
	s.noteKeys(s.cfg.Peers)
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
	quiet := slog.New(newTap(s.cfg.Log.Handler(), s.note, s.isFull))
	srv := server.NewBgpServer(server.LoggerOption(quiet, nil))
	go srv.Serve()
	if err := s.start(ctx, srv); err != nil {
		s.end(srv, false)
		return err
	}
	told := make(chan struct{})
	go s.tellChanges(ctx, told)
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
	hops, _ := s.lookUp() // reconcile looks again, and tells what is wrong
	if err := s.useHops(ctx, srv, hops); err != nil {
		return err
	}
	for _, a := range assignments() {
		if err := srv.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: a}); err != nil {
			return fmt.Errorf("BGP: assigning policy %s: %w", a.Policies[0].Name, err)
		}
	}
	events := server.WatchEventMessageCallbacks{OnPeerUpdate: s.onPeer}
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
		s.cfg.Log.Error("BGP: it is tried again until it works", "err", err, "every", look)
	default:
		s.cfg.Log.Info("BGP: what failed works again", "err", s.trouble)
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
	return errors.Join(s.usePeers(ctx, srv), s.setPolicies(ctx, srv), s.setRoutes(ctx, srv, want), s.closeLost(ctx, srv), s.open(ctx, srv))
}

// setPolicies looks up the next hops, and makes GoBGP use them.
func (s *Speaker) setPolicies(ctx context.Context, srv *server.BgpServer) error {
	hops, err := s.lookUp()
	return errors.Join(err, s.useHops(ctx, srv, hops))
}

// useHops makes GoBGP use next hops that have changed, also for routes that were announced with others.
func (s *Speaker) useHops(ctx context.Context, srv *server.BgpServer, hops map[netip.Addr][families]hop) error {
	if s.hops != nil && !s.stale && maps.Equal(hops, s.hops) {
		return nil
	}
	if err := srv.SetPolicies(ctx, policies(s.cfg.Peers, hops)); err != nil {
		return fmt.Errorf("BGP: setting policies: %w", err)
	}
	first := s.hops == nil
	s.hops, s.stale = hops, false
	s.mu.Lock()
	for addr, h := range hops {
		s.sessions[addr].hops = h
	}
	s.mu.Unlock()
	if first {
		return nil
	}
	out := &api.ResetPeerRequest{Address: "all", Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT}
	if err := srv.ResetPeer(ctx, out); err != nil {
		return fmt.Errorf("BGP: announcing again with other next hops: %w", err)
	}
	return nil
}

// open makes GoBGP hold sessions with peers that it does not have.
func (s *Speaker) open(ctx context.Context, srv *server.BgpServer) error {
	var errs []error
	for _, p := range s.which(func(ses *session) bool { return !ses.open }) {
		if err := srv.AddPeer(ctx, &api.AddPeerRequest{Peer: s.cfg.neighbor(p)}); err != nil {
			errs = append(errs, fmt.Errorf("BGP: opening the session with %v: %w", p.Address, err))
			continue
		}
		s.setOpen(p, true)
	}
	return errors.Join(errs...)
}

// closeLost has sessions that were lost opened again, as GoBGP cannot be left to it, for two reasons. It says that forwarding was
// preserved only in the first OPEN to a peer; a router that keeps routes over a restart would remove ours at any other, and
// have none until it has heard them again. And where both sides had connected, GoBGP opens a connection of its own before the five
// seconds in which it takes none, and looks at it only after them: a router whose hold time is shorter has closed it by then,
// again and again.
func (s *Speaker) closeLost(ctx context.Context, srv *server.BgpServer) error {
	var errs []error
	for _, p := range s.which((*session).takeLost) {
		errs = append(errs, s.remove(ctx, srv, p))
	}
	return errors.Join(errs...)
}

// remove makes GoBGP forget a peer, which open has it learn again.
func (s *Speaker) remove(ctx context.Context, srv *server.BgpServer, p Peer) error {
	if err := srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Address.String()}); err != nil {
		return fmt.Errorf("BGP: closing the session with %v: %w", p.Address, err)
	}
	s.setOpen(p, false)
	return nil
}

// takeLost reports, once, whether a session was lost and is not there again.
func (ses *session) takeLost() bool {
	lost := ses.lost && ses.state == Idle
	ses.lost = false
	return lost
}

func (s *Speaker) which(f func(*session) bool) (peers []Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.cfg.Peers {
		if f(s.sessions[p.Address]) {
			peers = append(peers, p)
		}
	}
	return peers
}

func (s *Speaker) setOpen(p Peer, open bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[p.Address].open = open
}

// end stops GoBGP and waits for its goroutines.
func (s *Speaker) end(srv *server.BgpServer, graceful bool) {
	s.mu.Lock()
	s.ending, s.server = true, nil
	s.mu.Unlock()
	// The only error is that it does not run, and then it is as it should be.
	_ = srv.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: graceful})
	srv.Stop() // what StopBgp leaves: the server for BFD, which is not used and has a goroutine
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if ses.state != Idle {
			ses.enter(Idle, time.Now())
		}
	}
}

// tellChanges calls OnChange until ctx ends.
func (s *Speaker) tellChanges(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changes:
		}
		changed := s.takeChanged()
		if s.cfg.OnChange == nil {
			continue
		}
		for _, st := range s.State() {
			if slices.Contains(changed, st.Address) {
				s.cfg.OnChange(st)
			}
		}
	}
}

func (s *Speaker) takeChanged() (changed []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, ses := range s.sessions {
		if ses.changed {
			changed, ses.changed = append(changed, addr), false
		}
	}
	return changed
}
