package l2

import (
	"cmp"
	"net/netip"
	"time"
)

// spaces are the times between the announcements of an address (see the package doc).
var spaces = [...]time.Duration{1100 * time.Millisecond, 2200 * time.Millisecond}

// retryAfter is how long to wait after an announcement that failed.
const retryAfter = 5 * time.Second

// A key names an address on a link.
type key struct {
	addr netip.Addr
	link string // name; "": none
}

func (k key) compare(l key) int {
	return cmp.Or(k.addr.Compare(l.addr), cmp.Compare(k.link, l.link))
}

// An entry is an address on a link, with the announcements that were made there.
type entry struct {
	addr netip.Addr
	attachment
	due    time.Time // of the next announcement; zero: all are made, or none may be
	made   int       // of the present series
	sent   uint64
	last   time.Time
	failed error // of the last attempt
}

// before reports whether e, whose key is k, comes before f: one that is due first, then the lower address.
func (e *entry) before(f *entry, k key) bool {
	return cmp.Or(e.due.Compare(f.due), k.compare(key{f.addr, f.link.name})) < 0
}

// move gives an entry its attachment, and reports whether a series of announcements begins:
// because the address came there, or the link came up.
func (e *entry) move(p attachment, now time.Time) bool {
	begins := p.err == nil && (e.err != nil || e.link != p.link)
	e.attachment = p
	switch {
	case p.err != nil:
		e.due, e.failed = time.Time{}, nil
	case begins:
		e.due, e.made = now, 0
	}
	return begins
}

// announced notes an attempt, and when the next is due.
func (e *entry) announced(now time.Time, err error) {
	e.failed = err
	if err != nil {
		e.due = now.Add(retryAfter)
		return
	}
	e.sent++
	e.last, e.due = now, time.Time{}
	if e.made < len(spaces) {
		e.due = now.Add(spaces[e.made])
		e.made++
	}
}

func (e *entry) result() Result {
	return Result{Addr: e.addr, Link: e.link.name, Sent: e.sent, Last: e.last, Err: cmp.Or(e.err, e.failed)}
}
