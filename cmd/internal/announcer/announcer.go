package announcer

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// stopTime is how long an end that withdraws takes at most: half of what svcproxy has to end.
const stopTime = 400 * time.Millisecond

// Neighbours are told which link-layer address has addresses of this host.
type Neighbours interface {
	Set([]netip.Addr)
	// Unanswered says for each address that no link answers for why not.
	Unanswered() map[netip.Addr]string
}

// Config configures an Announcer.
type Config struct {
	Log        *slog.Logger
	BGP        configs.BGP
	Open       func(configs.BGP, Peers) (Speaker, error) // RouterID is set
	Neighbours Neighbours                                // nil: they cannot be told
	RouterID   func() netip.Addr                         // the default of BGP.RouterID; the zero Addr: there is none

	// Late returns the families of which no sync has succeeded since the start, and the kernel may serve
	// addresses that routers were told of before. It may take some seconds. Nil: there are none.
	Late func(context.Context) []policy.Family
}

// An Announcer tells the network of addresses. It implements announce.Announcer.
type Announcer struct {
	cfg      Config
	wake     chan struct{} // room for one
	began    time.Time
	speakers sync.WaitGroup

	// Of the goroutine of Run.
	used  configs.BGP     // by the Speaker
	tryAt time.Time       // when one that failed is tried again
	late  []policy.Family // that routes are held back for

	logged string                // why there is no Speaker, until one has worked for a while
	known  map[netip.Addr]secret // passwords, of routers that settings name
	readAt time.Time             // when passwords that cannot be read are read again

	mu       sync.Mutex
	settings configs.BGP
	again    bool // passwords may have changed
	routes   routes
	progress progress
	running  *running            // nil: there is no Speaker
	why      string              // there is none, though settings ask for one
	since    time.Time           // so
	heldBack string              // why the Speaker is told no routes yet
	unusable map[netip.Addr]lack // passwords that cannot be read, as logged; another map for each change
}

// New returns an Announcer. Run has to run for it to be of use.
func New(cfg Config) *Announcer {
	now := time.Now()
	return &Announcer{cfg: cfg, wake: make(chan struct{}, 1), began: now, settings: cfg.BGP, routes: newRoutes(), since: now}
}

var _ announce.Announcer = (*Announcer)(nil)

// Announce implements announce.Announcer.
func (a *Announcer) Announce(fam policy.Family, changes []announce.Change) {
	a.mu.Lock()
	a.routes.apply(changes, time.Now())
	a.progress.announced++
	a.mu.Unlock()
	wake.Once(a.wake)
	a.log(fam, changes)
}

// maxLogged is how many addresses a line of the log names.
const maxLogged = 10

// log says what is announced from now on, and what is not any more.
func (a *Announcer) log(fam policy.Family, changes []announce.Change) {
	groups := []struct {
		level slog.Level
		what  string
		has   func(announce.Change) bool
	}{
		{slog.LevelInfo, "addresses announced", func(c announce.Change) bool { return c.Means != 0 }},
		{slog.LevelInfo, "addresses withdrawn, as asked for", func(c announce.Change) bool { return c.Means == 0 && c.Wanted }},
		{slog.LevelWarn, "addresses withdrawn: they cannot be used here", func(c announce.Change) bool { return c.Means == 0 && !c.Wanted }},
	}
	for _, g := range groups {
		list := slices.DeleteFunc(slices.Clone(changes), func(c announce.Change) bool { return !g.has(c) })
		if len(list) > 0 {
			a.cfg.Log.Log(context.Background(), g.level, g.what, "family", fam, "addresses", named(list))
		}
	}
}

func named(list []announce.Change) string {
	var names []string
	for _, c := range list[:min(len(list), maxLogged)] {
		names = append(names, c.Addr.String())
	}
	if more := len(list) - maxLogged; more > 0 {
		return fmt.Sprintf("%v and %d more", names, more)
	}
	return fmt.Sprint(names)
}

// Unavailable implements announce.Announcer.
func (a *Announcer) Unavailable(means source.Means) string {
	if means == source.L2 {
		if a.cfg.Neighbours == nil {
			return "neighbours cannot be told"
		}
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if why := a.settings.NoBGP(); why != "" {
		return why
	}
	return source.Printable(a.why)
}

// Unanswered implements announce.Announcer.
func (a *Announcer) Unanswered() map[netip.Addr]string {
	if a.cfg.Neighbours == nil {
		return nil
	}
	return a.cfg.Neighbours.Unanswered()
}

// Use takes over other settings. Those of routers end no session with others where the Speaker can change them. Others but
// on_stop end all sessions, and routers that agreed to it keep the routes meanwhile; those that name no router have them drop
// the routes at once.
func (a *Announcer) Use(b configs.BGP) {
	a.mu.Lock()
	a.settings = b
	a.mu.Unlock()
	wake.Once(a.wake)
}

// Reload has passwords read again, where there are any.
func (a *Announcer) Reload() {
	a.mu.Lock()
	a.again = slices.ContainsFunc(a.settings.Peers, func(p configs.BGPPeer) bool { return p.PasswordFile != "" })
	a.mu.Unlock()
	wake.Once(a.wake)
}

// Run tells the network once ready is closed, until ctx ends, and then does what on_stop says.
func (a *Announcer) Run(ctx context.Context, ready <-chan struct{}) {
	defer a.speakers.Wait()
	select {
	case <-ctx.Done():
		return // routers have kept what an earlier run told them
	case <-ready:
	}
	a.noteTold(0, true)
	defer a.noteTold(0, false)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := times.Due(a.speak(ctx), a.tell(ctx, time.Now()))
		if next.IsZero() {
			next = time.Now().Add(time.Hour)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			a.stop()
			return
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// tell tells all that is to be told, and returns when that changes by itself; zero: it does not.
func (a *Announcer) tell(ctx context.Context, now time.Time) time.Time {
	a.mu.Lock()
	run := a.running
	a.mu.Unlock()
	again := a.holdBack(ctx, run, now) // first: a family that is not late has announced what it has
	a.mu.Lock()
	list, next := a.routes.byBGP(now)
	links, announced := a.routes.byL2(), a.progress.announced
	a.mu.Unlock()
	defer a.noteTold(announced, true)
	if a.cfg.Neighbours != nil {
		a.cfg.Neighbours.Set(links)
	}
	if !again.IsZero() {
		return times.Due(next, again)
	}
	a.set(run, list)
	return next
}

func (a *Announcer) set(run *running, list []Route) {
	if run == nil {
		return
	}
	if err := run.speaker.SetRoutes(list); err != nil { // a service has no such address
		a.cfg.Log.Error("routers are not told of changes", "err", err)
	}
}

// stop ends what there is.
func (a *Announcer) stop() {
	a.mu.Lock()
	run, how := a.running, a.settings.OnStop
	list, _ := a.routes.byBGP(time.Now())
	a.mu.Unlock()
	if run == nil {
		return
	}
	if !run.told { // routers go by what an earlier run told them
		run.speaker.Stop(true)
		return
	}
	stay := slices.DeleteFunc(slices.Clone(list), func(r Route) bool { return r.Shutdown })
	switch {
	case how == "withdraw" && len(list) > 0:
		for i := range list {
			list[i].Shutdown = true
		}
		a.set(run, list)
		time.Sleep(stopTime)
		a.set(run, nil)
	case len(stay) < len(list): // those of a drain do not outlive it at routers
		a.set(run, stay)
		time.Sleep(stopTime)
	}
	run.speaker.Stop(how != "withdraw")
}
