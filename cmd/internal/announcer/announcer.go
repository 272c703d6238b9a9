package announcer

import (
	"cmp"
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
	cfg     Config
	wake    chan struct{} // room for one
	began   time.Time
	routers *routers

	late []policy.Family // that routes are held back for; of the goroutine of Run

	mu       sync.Mutex
	settings configs.BGP
	again    bool // passwords may have changed
	routes   routes
	progress progress
	heldBack string // why the Speaker is told no routes yet
}

// progress is how far the network has been told of what is announced. Announcer.mu guards it.
type progress struct {
	works     bool          // Run tells
	announced uint64        // calls of Announce
	told      uint64        // of these
	more      chan struct{} // closed when told grows, or Run ends
}

// New returns an Announcer. Run has to run for it to be of use.
func New(cfg Config) *Announcer {
	now, work := time.Now(), make(chan struct{}, 1)
	r := &routers{cfg: cfg, wake: work, passwords: passwords{log: cfg.Log}, since: now}
	return &Announcer{cfg: cfg, wake: work, began: now, routers: r, settings: cfg.BGP, routes: newRoutes()}
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
	why := a.settings.NoBGP()
	a.mu.Unlock()
	if why != "" {
		return why
	}
	_, why, _ = a.routers.inUse()
	return source.Printable(why)
}

// Unanswered implements announce.Announcer.
func (a *Announcer) Unanswered() map[netip.Addr]string {
	if a.cfg.Neighbours == nil {
		return nil
	}
	return a.cfg.Neighbours.Unanswered()
}

// Unheard implements announce.Announcer. Of a session that is established it says what is in the way.
func (a *Announcer) Unheard(fam policy.Family) string {
	why := ""
	for _, s := range a.sessions(false) { // it must not block
		text := s.withheld(fam)
		if text == "" {
			return ""
		}
		if why == "" || s.Up() {
			why = text
		}
	}
	return why
}

// Sessions returns those with all routers that settings name, in their order.
func (a *Announcer) Sessions() []Session { return a.sessions(true) }

// States returns the same without numbers of routes, which costs less.
func (a *Announcer) States() []Session { return a.sessions(false) }

func (a *Announcer) sessions(numbers bool) []Session {
	a.mu.Lock()
	b, heldBack := a.settings, a.heldBack
	a.mu.Unlock()
	run, why, since := a.routers.inUse()
	unusable := a.routers.passwords.lacks()
	known := make(map[netip.Addr]Session)
	if run != nil {
		for _, s := range run.speaker.Sessions(numbers) {
			s.LastError = source.Printable(cmp.Or(s.LastError, heldBack))
			known[s.Peer] = s
		}
	}
	if b.AS == 0 {
		return nil
	}
	list := make([]Session, 0, len(b.Peers))
	for _, p := range b.Peers {
		s, some := known[p.Address]
		if !some {
			s = Session{Peer: p.Address, AS: p.AS, State: "idle", Since: since, LastError: why}
		}
		s.addLack(unusable[p.Address])
		list = append(list, s)
	}
	return list
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
	defer a.routers.speakers.Wait()
	select {
	case <-ctx.Done():
		return // routers have kept what an earlier run told them
	case <-ready:
	}
	a.recordAnnounced(0, true)
	defer a.recordAnnounced(0, false)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		a.mu.Lock()
		want, again := a.settings, a.again
		a.again = false
		a.mu.Unlock()
		next := times.Due(a.routers.speak(ctx, want, again), a.announce(ctx, time.Now()))
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

// announce hands routes to BGP and addresses to neighbours, and returns when more of them become due; zero: never.
func (a *Announcer) announce(ctx context.Context, now time.Time) time.Time {
	run, _, _ := a.routers.inUse()
	again := a.holdBack(ctx, run, now) // first: a family that is not late has announced what it has
	a.mu.Lock()
	list, next := a.routes.byBGP(now)
	links, announced := a.routes.byL2(), a.progress.announced
	a.mu.Unlock()
	defer a.recordAnnounced(announced, true)
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
		a.cfg.Log.Error("cannot announce changes to BGP peers", "err", err)
	}
}

// stop ends what there is.
func (a *Announcer) stop() {
	a.mu.Lock()
	how := a.settings.OnStop
	list, _ := a.routes.byBGP(time.Now())
	a.mu.Unlock()
	run, _, _ := a.routers.inUse()
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

// Told waits until every announcement made before has been handed to the Speaker and, where they are used, to
// neighbours. It returns how many routes are now marked for withdrawal. The error is the cause of the end of ctx.
func (a *Announcer) Told(ctx context.Context) (marked int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for want := a.progress.announced; a.progress.works && a.progress.told < want; {
		more := a.progress.more
		a.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if a.mu.Lock(); err != nil {
			return 0, err
		}
	}
	if run, _, _ := a.routers.inUse(); run == nil {
		return 0, nil
	}
	return len(a.routes.going), nil
}

// recordAnnounced records how much has been announced, and whether Run goes on, and wakes who waits for that.
func (a *Announcer) recordAnnounced(told uint64, works bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &a.progress
	p.told, p.works = told, works
	if p.more != nil {
		close(p.more)
	}
	p.more = make(chan struct{})
}
