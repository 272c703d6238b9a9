package announcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/internal/wake"
)

// A Speaker holds sessions with routers, and announces routes to them.
type Speaker interface {
	// Run holds the sessions until ctx ends or Stop is called.
	Run(ctx context.Context) error
	// SetRoutes replaces what is announced. The first call opens the sessions.
	SetRoutes([]Route) error
	// SetPeers replaces the routers, without an end of sessions with those that stay. It reports false, and does
	// nothing, where only another Speaker can.
	SetPeers(configs.BGP, Peers) (bool, error)
	// Stop ends Run. With graceful, routers that agreed to it keep the routes.
	Stop(graceful bool)
	// Sessions returns the state of each. Without numbers of routes it waits for nothing.
	Sessions(numbers bool) []Session
}

// A running is a Speaker that runs.
type running struct {
	speaker Speaker
	peers   Peers
	opened  time.Time
	ended   chan error // what Run returned
	told    bool       // routes; of the goroutine of Announcer.Run
}

// trial is after how long a Speaker is taken to work: one that cannot listen ends at once.
const trial = 5 * time.Second

// routers has a Speaker run as settings of BGP ask for.
type routers struct {
	cfg      Config
	wake     chan struct{} // of the Announcer
	speakers sync.WaitGroup

	// Of the goroutine of Announcer.Run.
	used      configs.BGP // by the Speaker
	passwords passwords
	tryAt     time.Time // when one that failed is tried again
	logged    string    // why there is no Speaker, until one has worked for a while

	mu      sync.Mutex
	running *running  // nil: there is no Speaker
	why     string    // there is none, though settings ask for one
	since   time.Time // so
}

// inUse returns the Speaker that runs, or why there is none, and since when; nil, and nothing: none is asked for.
func (r *routers) inUse() (*running, string, time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running, r.why, r.since
}

// ofSessions returns what sessions depend on: not on what becomes of routes at the end.
func ofSessions(b configs.BGP) configs.BGP {
	b.OnStop = ""
	return b
}

// speak has a Speaker run as want asks for, and reads passwords again if asked to. It returns when it is to be called again; zero: when
// settings change.
func (r *routers) speak(ctx context.Context, want configs.BGP, again bool) time.Time {
	run, _, _ := r.inUse()
	if run != nil && r.hasEnded(run) {
		run = nil
	}
	again = again || r.passwords.rereads()
	same := reflect.DeepEqual(ofSessions(want), ofSessions(r.used)) && !(again && r.differs(run, want))
	switch {
	case run != nil && same:
		return r.checkTrial(run)
	case run != nil && r.change(run, want):
		return r.due(run)
	case run != nil:
		r.end(run, want.Enabled())
	case same && !again && time.Now().Before(r.tryAt):
		return r.tryAt
	}
	r.used, r.tryAt = want, time.Time{}
	if !want.Enabled() {
		r.setRunning(nil, nil)
		r.logged = ""
		r.passwords.forget()
		return time.Time{}
	}
	run, err := r.open(ctx, want)
	if r.setRunning(run, err); err != nil {
		return r.tryAt
	}
	return r.due(run)
}

// ofSpeaker returns what a Speaker cannot change while it runs.
func ofSpeaker(b configs.BGP) configs.BGP {
	b.OnStop, b.Communities, b.Peers = "", nil, nil
	return b
}

// change has a Speaker go on with other routers, or with others of their settings, and reports whether it does.
func (r *routers) change(run *running, want configs.BGP) bool {
	if !want.Enabled() || !reflect.DeepEqual(ofSpeaker(want), ofSpeaker(r.used)) {
		return false
	}
	peers := r.passwords.read(want)
	if len(peers) == 0 {
		return false
	}
	done, err := run.speaker.SetPeers(want, peers)
	if err != nil || !done {
		return false // another Speaker says what is wrong
	}
	r.cfg.Log.Info("BGP peers changed; sessions with the others continue")
	next := *run
	next.peers = peers
	r.used = want
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = &next
	return true
}

// end ends a Speaker. Where there is to be another one, routers that agreed to it keep the routes meanwhile.
func (r *routers) end(run *running, another bool) {
	what := "settings of BGP changed: all sessions begin again"
	if !another {
		what = "no router is to be told of addresses any more: all sessions end, and routers drop the routes"
	}
	r.cfg.Log.Info(what)
	run.speaker.Stop(another)
}

// hasEnded notes that a Speaker has ended, and reports whether it has: such a one takes other routers, too, and does nothing.
func (r *routers) hasEnded(run *running) bool {
	select {
	case err := <-run.ended:
		r.setRunning(nil, fmt.Errorf("BGP ended: %w", cmp.Or(err, errors.New("its goroutine is gone"))))
		return true
	default:
		return false
	}
}

// checkTrial logs that a Speaker works again, once it has worked for as long as trial.
func (r *routers) checkTrial(run *running) time.Time {
	if r.logged != "" && !time.Now().Before(run.opened.Add(trial)) {
		r.cfg.Log.Info("addresses are announced by BGP again", "was", r.logged)
		r.logged = ""
	}
	return r.due(run)
}

// due returns when speak is to be called again with a Speaker; zero: when settings change.
func (r *routers) due(run *running) (next time.Time) {
	if r.logged != "" {
		next = run.opened.Add(trial)
	}
	if len(r.passwords.unusable) > 0 {
		next = times.Due(next, r.passwords.readAt)
	}
	return next
}

// open opens a Speaker, and has it run.
func (r *routers) open(ctx context.Context, b configs.BGP) (*running, error) {
	peers := r.passwords.read(b)
	if len(peers) == 0 {
		return nil, errors.New("no router has a password that can be used")
	}
	if !b.RouterID.IsValid() {
		if b.RouterID = r.cfg.RouterID(); !b.RouterID.IsValid() {
			return nil, errors.New("this host has no IPv4 address: set router_id in [bgp]")
		}
	}
	speaker, err := r.cfg.Open(b, peers)
	if err != nil {
		return nil, err
	}
	run := &running{speaker: speaker, peers: peers, opened: time.Now(), ended: make(chan error, 1)}
	work := context.WithoutCancel(ctx) // it ends by Stop
	r.speakers.Go(func() {
		run.ended <- speaker.Run(work)
		wake.Once(r.wake)
	})
	return run, nil
}

// setRunning notes the Speaker in use; nil: there is none, for that error. One that is new is logged.
func (r *routers) setRunning(run *running, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	r.mu.Lock()
	r.running, r.why, r.since = run, why, time.Now()
	r.mu.Unlock()
	if err == nil {
		return
	}
	r.tryAt = time.Now().Add(retry)
	if why != r.logged {
		r.logged = why
		r.cfg.Log.Error("no address is announced by BGP", "err", why, "retry", retry)
	}
}

// differs reports whether passwords are others than those in use.
func (r *routers) differs(run *running, b configs.BGP) bool {
	return run == nil || !maps.Equal(r.passwords.read(b), run.peers)
}
