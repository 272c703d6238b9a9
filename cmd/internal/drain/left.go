package drain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

const (
	// countTime is how long connections may be counted.
	countTime = 5 * time.Second

	// leftAge is how old an answer may be: a little less than the interval of a client.
	leftAge = 900 * time.Millisecond

	// leftShare is how much longer than a look the pause after it is at least: looks then
	// cost less than a tenth of a processor, however many connections there are.
	leftShare = 9

	// leftAsked is for how long after a question a look is for its target too.
	leftAsked = 5 * time.Second

	// leftTargets is of how many targets answers are remembered.
	leftTargets = 256

	// leftFormer is how many frontend addresses are remembered.
	leftFormer = 100_000
)

// A leftCounter counts connections to what is drained. One look at the kernel is under way at a
// time, for all that are asked about.
type leftCounter struct {
	Config
	turn chan struct{} // holds something while a look is under way

	mu     sync.Mutex
	asked  map[conditions.DrainTarget]*leftAnswer
	former map[proxier.FrontendAddr]source.Key // what had connections to drained endpoints, or could have
}

func newLeftCounter(c Config) *leftCounter {
	return &leftCounter{
		Config: c, turn: make(chan struct{}, 1),
		asked: make(map[conditions.DrainTarget]*leftAnswer), former: make(map[proxier.FrontendAddr]source.Key),
	}
}

// A leftAnswer is what is known of a target.
type leftAnswer struct {
	asked time.Time // last
	since time.Time // looks that began before say nothing
	look
}

// A look is what was there at one time; the zero look: none yet.
type look struct {
	began    time.Time
	took     time.Duration
	services []control.RemainingIn
}

func (l *look) old() bool { return time.Since(l.began) >= max(leftAge, l.took*(1+leftShare)) }

// of returns which services have connections to a target, not long ago.
func (l *leftCounter) of(ctx context.Context, t conditions.DrainTarget) (look, error) {
	if known := l.ask(t); !known.old() {
		return known, nil
	}
	if err := l.acquireTurn(ctx); err != nil {
		return look{}, fmt.Errorf("counting connections: %w", err)
	}
	defer func() { <-l.turn }()
	if known := l.ask(t); !known.old() { // who had the turn before looked for this target too
		return known, nil
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, countTime, errNotCounted)
	defer cancel()
	found, err := l.count(ctx, l.targets(began))
	if err != nil {
		return look{}, fmt.Errorf("counting connections: %w", cmp.Or(context.Cause(ctx), err))
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	for target, services := range found {
		if a := l.asked[target]; a != nil && !began.Before(a.since) {
			a.look = look{began, took, services}
		}
	}
	return look{began, took, found[t]}, nil
}

var errNotCounted = fmt.Errorf("not counted within %v", countTime)

// acquireTurn waits until no look is under way, for countTime at most.
func (l *leftCounter) acquireTurn(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, countTime, errNotCounted)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ask notes that a target is asked about, and returns the last look at it.
func (l *leftCounter) ask(t conditions.DrainTarget) look {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.asked[t]
	if a == nil {
		if len(l.asked) >= leftTargets {
			delete(l.asked, l.longestAgo())
		}
		a = new(leftAnswer)
		l.asked[t] = a
	}
	a.asked = time.Now()
	return a.look
}

// longestAgo returns the target that nobody has asked about for longest. The caller holds l.mu.
func (l *leftCounter) longestAgo() conditions.DrainTarget {
	return slices.MinFunc(slices.Collect(maps.Keys(l.asked)), func(a, b conditions.DrainTarget) int {
		return l.asked[a].asked.Compare(l.asked[b].asked)
	})
}

// targets returns those that were asked about lately.
func (l *leftCounter) targets(now time.Time) (list []conditions.DrainTarget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t, a := range l.asked {
		if now.Sub(a.asked) < leftAsked {
			list = append(list, t)
		}
	}
	return list
}

// changed has looks at a target count only from now on: it is drained, or not any more.
func (l *leftCounter) changed(t conditions.DrainTarget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.asked[t]; a != nil {
		a.look, a.since = look{}, time.Now()
	}
}

// begin remembers where connections to an endpoint come from, before it is drained: its services
// may be gone when they are counted.
func (l *leftCounter) begin(t conditions.DrainTarget) {
	if t.Node {
		return // connections to all endpoints count, and are remembered when they are seen
	}
	addrs := make(map[proxier.FrontendAddr]source.Key)
	for _, s := range l.Loop.Syncs() {
		var last *policy.Resolved
		has := false
		for p, r := range s.FrontendAddrs() {
			if r != last {
				last, has = r, covers(t, r)
			}
			if has {
				addrs[p] = r.Key
			}
		}
	}
	l.remember(addrs)
}

// covers reports whether a service has the endpoint that is drained.
func covers(t conditions.DrainTarget, r *policy.Resolved) bool {
	for at := range r.Endpoints() {
		if t.Covers(r.Key, at.Addr()) {
			return true
		}
	}
	return false
}

// remember has connections to frontend addresses count also when no service has them any more.
func (l *leftCounter) remember(addrs map[proxier.FrontendAddr]source.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, key := range addrs {
		if _, known := l.former[p]; !known && len(l.former) < leftFormer {
			l.former[p] = key
		}
	}
}

// forget forgets all frontend addresses: nothing is drained.
func (l *leftCounter) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.former)
}

// owners says which services have a frontend address, and had it before; zero: none.
type owners struct{ now, before source.Key }

// of returns the service that connections to the frontend address count for; not ok: none that is drained.
func (o owners) of(t conditions.DrainTarget) (key source.Key, ok bool) {
	switch none := (source.Key{}); {
	case t.Service == none && o.now == none:
		return o.before, true
	case t.Service == none:
		return o.now, true
	}
	return t.Service, t.Service == o.now || t.Service == o.before
}

// owners returns who has and had each frontend address.
func (l *leftCounter) owners(serving []report.Family) map[proxier.FrontendAddr]owners {
	owned := make(map[proxier.FrontendAddr]owners)
	l.mu.Lock()
	for p, key := range l.former {
		owned[p] = owners{before: key}
	}
	l.mu.Unlock()
	for i := range serving {
		for p, r := range serving[i].FrontendAddrs() {
			owned[p] = owners{r.Key, owned[p].before}
		}
	}
	return owned
}

// count looks at the kernel.
func (l *leftCounter) count(ctx context.Context, targets []conditions.DrainTarget) (map[conditions.DrainTarget][]control.RemainingIn, error) {
	owned := l.owners(l.Loop.Syncs())
	seen := make(map[proxier.FrontendAddr]source.Key)
	found := make(map[conditions.DrainTarget]map[source.Key]*control.RemainingIn)
	byAddr := make(map[netip.Addr][]conditions.DrainTarget) // not valid: this host
	for _, t := range targets {
		byAddr[t.Addr] = append(byAddr[t.Addr], t)
		found[t] = make(map[source.Key]*control.RemainingIn)
	}
	visit := func(at netip.Addr, p proxier.FrontendAddr) {
		o, ok := owned[p]
		if !ok {
			return // of another program
		}
		for _, list := range [][]conditions.DrainTarget{byAddr[at], byAddr[netip.Addr{}]} {
			for _, t := range list {
				if key, ok := o.of(t); ok {
					remain(found[t], key, p.Protocol)
					seen[p] = key
				}
			}
		}
	}
	for fam, to := range asks(byAddr) {
		if err := l.Open(ctx, fam, to, visit); err != nil {
			return nil, err
		}
	}
	l.remember(seen)
	lists := make(map[conditions.DrainTarget][]control.RemainingIn, len(found))
	for t, services := range found {
		lists[t] = sortedRemaining(services)
	}
	return lists, nil
}

// asks returns which families are to be looked at, and the one address to look for; not valid: all.
func asks(byAddr map[netip.Addr][]conditions.DrainTarget) map[policy.Family]netip.Addr {
	to := make(map[policy.Family]netip.Addr)
	if _, node := byAddr[netip.Addr{}]; node {
		to[policy.IPv4], to[policy.IPv6] = netip.Addr{}, netip.Addr{}
		return to
	}
	for a := range byAddr {
		fam := policy.FamilyOf(a)
		if _, more := to[fam]; more {
			a = netip.Addr{}
		}
		to[fam] = a
	}
	return to
}

func sortedRemaining(services map[source.Key]*control.RemainingIn) []control.RemainingIn {
	list := make([]control.RemainingIn, 0, len(services))
	for _, s := range services {
		list = append(list, *s)
	}
	slices.SortFunc(list, func(a, b control.RemainingIn) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// remain counts a connection for a service.
func remain(found map[source.Key]*control.RemainingIn, key source.Key, p source.Protocol) {
	s := found[key]
	if s == nil {
		s = &control.RemainingIn{Namespace: key.Namespace, Name: key.Name}
		found[key] = s
	}
	if p == source.UDP {
		s.Flows++
	} else {
		s.Connections++
	}
}
