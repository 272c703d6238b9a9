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

	// leftFormer is how many frontend addresses are remembered.
	leftFormer = 100_000
)

// A leftCounter counts connections to what is drained. One look at the kernel is under way at a
// time, for all that is asked about: of one endpoint the kernel lists only connections to that.
type leftCounter struct {
	Config
	turn chan struct{} // holds something while a look is under way

	mu     sync.Mutex
	last   look
	since  time.Time                            // looks that began before say nothing of what is drained now
	asked  map[conditions.DrainTarget]time.Time // last
	former map[proxier.FrontendAddr]source.Key  // what had connections to drained endpoints, or could have
}

// A look is what was there at one time; the zero look: none yet.
type look struct {
	began time.Time
	took  time.Duration
	left  map[conditions.DrainTarget][]control.RemainingIn
}

// of returns which services have connections to a target, and when that was looked at, which is not long ago.
func (l *leftCounter) of(ctx context.Context, t conditions.DrainTarget) ([]control.RemainingIn, time.Time, error) {
	if services, began := l.recent(t); services != nil {
		return services, began, nil
	}
	waiting, cancel := context.WithTimeoutCause(ctx, countTime, errNotCounted)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
	case <-waiting.Done():
		return nil, time.Time{}, fmt.Errorf("counting connections: %w", context.Cause(waiting))
	}
	defer func() { <-l.turn }()
	if services, began := l.recent(t); services != nil { // who had the turn before looked for this target too
		return services, began, nil
	}
	ctx, cancel = context.WithTimeoutCause(ctx, countTime, errNotCounted)
	defer cancel()
	now := look{began: time.Now()}
	var err error
	if now.left, err = l.count(ctx, l.targets(now.began)); err != nil {
		return nil, time.Time{}, fmt.Errorf("counting connections: %w", cmp.Or(context.Cause(ctx), err))
	}
	now.took = time.Since(now.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !now.began.Before(l.since) {
		l.last = now
	}
	return now.left[t], now.began, nil
}

var errNotCounted = fmt.Errorf("not counted within %v", countTime)

// recent notes that a target is asked about, and returns what the last look found; nil: nothing, or that was too long ago.
func (l *leftCounter) recent(t conditions.DrainTarget) (services []control.RemainingIn, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked[t] = time.Now()
	if time.Since(l.last.began) >= max(leftAge, l.last.took*(1+leftShare)) {
		return nil, time.Time{}
	}
	return l.last.left[t], l.last.began
}

// targets returns those that were asked about lately, and forgets others.
func (l *leftCounter) targets(now time.Time) []conditions.DrainTarget {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.asked, func(_ conditions.DrainTarget, at time.Time) bool { return now.Sub(at) >= leftAsked })
	return slices.Collect(maps.Keys(l.asked))
}

// changed has looks at a target count only from now on: it is drained, or not any more.
func (l *leftCounter) changed(t conditions.DrainTarget) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.last.left, t)
	l.since = time.Now()
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
				last, has = r, false
				for at := range r.Endpoints() {
					if has = t.Covers(r.Key, at.Addr()); has {
						break
					}
				}
			}
			if has {
				addrs[p] = r.Key
			}
		}
	}
	l.remember(addrs)
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

// ownerOf returns the service that connections to a frontend address count for, of those that have it now and had it
// before. ok is false if the target is of another service.
func ownerOf(t conditions.DrainTarget, now, before source.Key) (key source.Key, ok bool) {
	switch none := (source.Key{}); {
	case t.Service == none && now == none:
		return before, true
	case t.Service == none:
		return now, true
	}
	return t.Service, t.Service == now || t.Service == before
}

// count looks at the kernel.
func (l *leftCounter) count(ctx context.Context, targets []conditions.DrainTarget) (map[conditions.DrainTarget][]control.RemainingIn, error) {
	l.mu.Lock()
	before := maps.Clone(l.former)
	l.mu.Unlock()
	now := make(map[proxier.FrontendAddr]source.Key)
	for _, s := range l.Loop.Syncs() {
		for p, r := range s.FrontendAddrs() {
			now[p] = r.Key
		}
	}
	seen := make(map[proxier.FrontendAddr]source.Key)
	found := make(map[conditions.DrainTarget]map[source.Key]*control.RemainingIn)
	byAddr := make(map[netip.Addr][]conditions.DrainTarget) // not valid: this host
	for _, t := range targets {
		byAddr[t.Addr] = append(byAddr[t.Addr], t)
		found[t] = make(map[source.Key]*control.RemainingIn)
	}
	visit := func(at netip.Addr, p proxier.FrontendAddr) {
		has, had := now[p], before[p]
		if has == had && has == (source.Key{}) {
			return // of another program
		}
		for _, list := range [][]conditions.DrainTarget{byAddr[at], byAddr[netip.Addr{}]} {
			for _, t := range list {
				if key, ok := ownerOf(t, has, had); ok {
					s := found[t][key]
					if s == nil {
						s = &control.RemainingIn{Namespace: key.Namespace, Name: key.Name}
						found[t][key] = s
					}
					if p.Protocol == source.UDP {
						s.Flows++
					} else {
						s.Connections++
					}
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
		list := make([]control.RemainingIn, 0, len(services))
		for _, s := range services {
			list = append(list, *s)
		}
		slices.SortFunc(list, func(a, b control.RemainingIn) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		lists[t] = list
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
