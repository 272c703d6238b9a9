package flows

import (
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A look says which flows to judge.
type look struct {
	at      time.Duration // when, since the worker's epoch; 0: at once
	done    int           // how many times it was done already
	all     bool          // flows of all frontends
	past    bool          // of frontends that went unseen, too
	changed map[netip.AddrPort]frontendChange
}

// A frontendChange is what became of the frontend at an address and port.
type frontendChange struct {
	appeared bool // a frontend has come here, or refused flows until now
	whole    bool // any flow to it may be stale
	past     bool // it went unseen, and its endpoints are not known: what was translated is taken for ours

	// Endpoints, sorted: those that a frontend had, whose flows may be stale, and of these those whose
	// connections are closed, and those that may not answer any more. Where the frontend is gone, only
	// flows to these were ours.
	former, closed, dead []netip.AddrPort
}

// merge adds what o looks for.
func (l *look) merge(o *look) {
	l.all, l.past = l.all || o.all, l.past || o.past
	l.done = min(l.done, o.done)
	for at, p := range o.changed {
		l.add(at, p)
	}
}

// addGone notes the flows of a frontend that was removed from some addresses.
func (l *look) addGone(f *policy.Frontend, addrs []netip.Addr) {
	if len(addrs) == 0 {
		return
	}
	c := changeOf(f, nil)
	for _, a := range addrs {
		l.add(netip.AddrPortFrom(a, f.Key.Port), c)
	}
}

func (l *look) add(at netip.AddrPort, c frontendChange) {
	if l.changed == nil {
		l.changed = make(map[netip.AddrPort]frontendChange)
	}
	had := l.changed[at]
	l.changed[at] = frontendChange{
		appeared: c.appeared || had.appeared, whole: c.whole || had.whole, past: c.past || had.past,
		former: both(c.former, had.former), closed: both(c.closed, had.closed), dead: both(c.dead, had.dead),
	}
}

// both returns the elements of two sorted lists.
func both(a, b []netip.AddrPort) []netip.AddrPort {
	if len(a) == 0 || len(b) == 0 {
		return append(a[:len(a):len(a)], b...)
	}
	return lists.Sorted(slices.Concat(a, b))
}

// about reports whether l is about flows to or from an address and port.
func (l *look) about(at netip.AddrPort) bool {
	_, named := l.changed[at]
	return l.all || named
}

// names reports whether flows to a frontend may be looked for; node ports have the unspecified address.
func (l *look) names(at netip.AddrPort) bool {
	if l.about(at) || !at.Addr().IsUnspecified() {
		return l.about(at)
	}
	for a := range l.changed {
		if a.Port() == at.Port() {
			return true
		}
	}
	return false
}

// forgetPast leaves out frontends that went unseen.
func (l *look) forgetPast() {
	l.past = false
	for at, c := range l.changed {
		if c.past {
			c.past = false
			l.changed[at] = c
		}
	}
}
