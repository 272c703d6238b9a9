package announcer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
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

// Peers are the routers that a Speaker is opened with, with their passwords. It has no others.
type Peers map[netip.Addr]string

// A running is a Speaker that runs.
type running struct {
	speaker Speaker
	peers   Peers
	opened  time.Time
	ended   chan error // what Run returned
	told    bool       // routes; of the goroutine of Announcer.Run
}

// retry is after how long a Speaker that cannot be opened, or has ended, is tried again, and a password that cannot be read.
const retry = 10 * time.Second

// trial is after how long a Speaker is taken to work: one that cannot listen ends at once.
const trial = 5 * time.Second

// ofSessions returns what sessions depend on: not on what becomes of routes at the end.
func ofSessions(b configs.BGP) configs.BGP {
	b.OnStop = ""
	return b
}

// speak has a Speaker run as settings ask for. It returns when it is to be called again; zero: when they change.
func (a *Announcer) speak(ctx context.Context) time.Time {
	a.mu.Lock()
	want, again, run := a.settings, a.again, a.running
	a.again = false
	a.mu.Unlock()
	if run != nil && a.hasEnded(run) {
		run = nil
	}
	again = again || a.rereads()
	same := reflect.DeepEqual(ofSessions(want), ofSessions(a.used)) && !(again && a.differs(run, want))
	switch {
	case run != nil && same:
		return a.look(run)
	case run != nil && a.change(run, want):
		return a.due(run)
	case run != nil:
		a.end(run, want.Enabled())
	case same && !again && time.Now().Before(a.tryAt):
		return a.tryAt
	}
	a.used, a.tryAt = want, time.Time{}
	if !want.Enabled() {
		a.setRunning(nil, nil)
		a.forget()
		return time.Time{}
	}
	run, err := a.open(ctx, want)
	if a.setRunning(run, err); err != nil {
		return a.tryAt
	}
	return a.due(run)
}

// end ends a Speaker. Where there is to be another one, routers that agreed to it keep the routes meanwhile.
func (a *Announcer) end(run *running, another bool) {
	what := "settings of BGP changed: all sessions begin again"
	if !another {
		what = "no router is to be told of addresses any more: all sessions end, and routers drop the routes"
	}
	a.cfg.Log.Info(what)
	run.speaker.Stop(another)
}

// hasEnded notes that a Speaker has ended, and reports whether it has: such a one takes other routers, too, and does nothing.
func (a *Announcer) hasEnded(run *running) bool {
	select {
	case err := <-run.ended:
		a.setRunning(nil, fmt.Errorf("BGP ended: %w", cmp.Or(err, errors.New("its goroutine is gone"))))
		return true
	default:
		return false
	}
}

// look notes that a Speaker works after others that failed.
func (a *Announcer) look(run *running) time.Time {
	if a.logged != "" && !time.Now().Before(run.opened.Add(trial)) {
		a.cfg.Log.Info("addresses are announced by BGP again", "was", a.logged)
		a.logged = ""
	}
	return a.due(run)
}

// due returns when speak is to be called again with a Speaker; zero: when settings change.
func (a *Announcer) due(run *running) (next time.Time) {
	if a.logged != "" {
		next = run.opened.Add(trial)
	}
	if len(a.unusable) > 0 {
		next = times.Due(next, a.readAt)
	}
	return next
}

// open opens a Speaker, and has it run.
func (a *Announcer) open(ctx context.Context, b configs.BGP) (*running, error) {
	peers := a.passwords(b)
	if len(peers) == 0 {
		return nil, errors.New("no router has a password that can be used")
	}
	if !b.RouterID.IsValid() {
		if b.RouterID = a.cfg.RouterID(); !b.RouterID.IsValid() {
			return nil, errors.New("this host has no IPv4 address: set router_id in [bgp]")
		}
	}
	speaker, err := a.cfg.Open(b, peers)
	if err != nil {
		return nil, err
	}
	run := &running{speaker: speaker, peers: peers, opened: time.Now(), ended: make(chan error, 1)}
	work := context.WithoutCancel(ctx) // it ends by Stop
	a.speakers.Go(func() {
		run.ended <- speaker.Run(work)
		wake.Once(a.wake)
	})
	return run, nil
}

// setRunning notes the Speaker in use; nil: there is none, for that error. One that is new is logged.
func (a *Announcer) setRunning(run *running, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	a.mu.Lock()
	a.running, a.why, a.since = run, why, time.Now()
	a.mu.Unlock()
	if err == nil {
		return
	}
	a.tryAt = time.Now().Add(retry)
	if why != a.logged {
		a.logged = why
		a.cfg.Log.Error("no address is announced by BGP", "err", why, "retry", retry)
	}
}
