package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/netutil/links"
)

const (
	// gap is the time between two announcements, whatever their addresses and links.
	gap = 5 * time.Millisecond

	// settle is how long changes are collected before the host is read again: bringing
	// a link up causes a dozen.
	settle = 50 * time.Millisecond

	// reread is how long to wait before a host is read again that could not be read.
	reread = time.Second

	// relook is how often the host is read while an address is not announced: there are
	// no events of local routes, settings, and addresses of links.Own.
	relook = 10 * time.Second

	// rest is how long to wait when nothing is to be done: events end it.
	rest = time.Hour
)

// A Result is what became of an address on one link, or on none.
type Result struct {
	Addr netip.Addr
	Link string    // name of the link; "": there is none for it
	Sent uint64    // how often it was announced there since it was last absent from the link
	Last time.Time // when it was last announced there; zero: not yet

	// Err is why it is not announced there: the reason for which it must not be, or what
	// failed when it last was tried. nil: it is, or soon will be (Last).
	Err error
}

// A network is what an Announcer needs of the host.
type network interface {
	read() (*host, error)
	announce(on link, a netip.Addr) error
	close()
}

// An Announcer announces addresses of this host to its neighbours. All methods may be
// called at any time, by any goroutine.
type Announcer struct {
	log *slog.Logger
	net network
	ask chan struct{} // a call of Set; room for one

	mu      sync.Mutex
	want    []netip.Addr   // sorted, each once
	entries map[key]*entry // changed by Run only

	// Of Run.
	lookAt time.Time // when the host is to be read; zero: when something changes
	free   time.Time // when the next announcement may be made
	unread bool      // the host could not be read
	unsent bool      // the last announcement failed
	warned string    // the last warning of addresses that are not announced
}

// New returns an Announcer, which does nothing before Run.
func New(log *slog.Logger) *Announcer {
	return &Announcer{log: log, net: &kernel{}, ask: make(chan struct{}, 1)}
}

// Set replaces the addresses that are announced. Those that come are announced within
// 0.1 s, as far as the limit on announcements allows; of those that stay, nothing changes.
func (a *Announcer) Set(addrs []netip.Addr) {
	want := make([]netip.Addr, len(addrs))
	for i, addr := range addrs {
		want[i] = addr.Unmap().WithZone("")
	}
	slices.SortFunc(want, netip.Addr.Compare)
	a.mu.Lock()
	a.want = slices.Compact(want)
	a.mu.Unlock()
	wake.Once(a.ask)
}

// errUnread: an address came in the last moment, or the host could not be read since it did.
var errUnread = errors.New("the links of this host have not been read yet")

// Results returns what became of each address, in order of address and link: one for each
// link on which it is or would be announced, or one without a link.
func (a *Announcer) Results() []Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]Result, 0, max(len(a.entries), len(a.want)))
	unread := make(map[netip.Addr]bool, len(a.want))
	for _, addr := range a.want {
		unread[addr] = true
	}
	for k, e := range a.entries {
		list = append(list, e.result())
		delete(unread, k.addr)
	}
	for addr := range unread {
		list = append(list, Result{Addr: addr, Err: errUnread})
	}
	slices.SortFunc(list, func(r, s Result) int { return key{r.Addr, r.Link}.compare(key{s.Addr, s.Link}) })
	return list
}

// Run announces until ctx ends, in the caller's goroutine and network namespace. It is
// called once.
func (a *Announcer) Run(ctx context.Context) {
	changes, ended := links.Changes(ctx, a.log)
	defer ended()
	defer a.net.close()
	a.loop(ctx, changes)
}

func (a *Announcer) loop(ctx context.Context, changes <-chan struct{}) {
	timer := time.NewTimer(rest)
	defer timer.Stop()
	for {
		timer.Reset(a.work(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-changes:
			a.readBy(time.Now().Add(settle))
		case <-a.ask:
			a.readBy(time.Now().Add(settle))
		case <-timer.C:
		}
	}
}

// readBy has the host read at t at the latest.
func (a *Announcer) readBy(t time.Time) {
	if a.lookAt.IsZero() || t.Before(a.lookAt) {
		a.lookAt = t
	}
}

// work does what is due, one announcement at most, and returns how long there is nothing to do.
func (a *Announcer) work(now time.Time) time.Duration {
	if !a.lookAt.IsZero() && !now.Before(a.lookAt) {
		a.lookAt = time.Time{}
		a.refresh(now)
	}
	if e := a.first(); e != nil && !now.Before(e.due) && !now.Before(a.free) {
		a.announce(e)
		a.free = now.Add(gap)
	}
	next := now.Add(rest)
	if e := a.first(); e != nil {
		next = times.Earlier(next, times.Later(e.due, a.free))
	}
	if !a.lookAt.IsZero() {
		next = times.Earlier(next, a.lookAt)
	}
	return max(0, next.Sub(now))
}

// first returns the entry that is to be announced first; nil: none is.
func (a *Announcer) first() (first *entry) {
	for k, e := range a.entries {
		if !e.due.IsZero() && (first == nil || e.before(first, k)) {
			first = e
		}
	}
	return first
}

// announce makes one announcement. The lock is not held while it is sent.
func (a *Announcer) announce(e *entry) {
	err := a.net.announce(e.link, e.addr)
	if err != nil && !a.unsent { // once: the others are in Results
		a.log.Warn("announcing addresses to neighbours failed", "err", err, "retry", retryAfter)
	}
	a.unsent = err != nil
	a.mu.Lock()
	defer a.mu.Unlock()
	e.announced(time.Now(), err)
}

// refresh reads the host, and has those addresses announced that need to be.
func (a *Announcer) refresh(now time.Time) {
	want := a.wanted()
	if len(want) == 0 {
		a.move(nil, nil, now)
		return
	}
	h, err := a.net.read()
	if err != nil {
		a.postpone(err, now)
		return
	}
	a.unread = false
	a.attach(h, want, now)
}

// wanted returns the addresses of the last Set.
func (a *Announcer) wanted() []netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.want
}

// postpone leaves everything as it is until the host can be read.
func (a *Announcer) postpone(err error, now time.Time) {
	if !a.unread { // once
		a.log.Warn("cannot read the links of this host; announcing addresses as before", "err", err, "retry", reread)
	}
	a.unread = true
	a.readBy(now.Add(reread))
}

// attach finds where each address is announced.
func (a *Announcer) attach(h *host, want []netip.Addr, now time.Time) {
	attachments := make(map[netip.Addr][]attachment, len(want))
	for _, addr := range want { // without the lock: the kernel is asked
		attachments[addr] = h.attachments(addr)
	}
	begun, none := a.move(want, attachments, now)
	if begun > 0 {
		a.log.Info("announcing addresses to neighbours", "count", begun)
	}
	a.warn(none)
	if len(none) > 0 {
		a.readBy(now.Add(relook))
	}
}

// move gives all addresses their attachments. It returns for how many a series of announcements
// begins, and those that are not announced.
func (a *Announcer) move(want []netip.Addr, attachments map[netip.Addr][]attachment, now time.Time) (begun int, none []*entry) {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.entries
	a.entries = make(map[key]*entry, len(old))
	for _, addr := range want {
		for _, p := range attachments[addr] {
			k := key{addr, p.link.name}
			e := old[k]
			if e == nil {
				e = &entry{addr: addr}
			}
			if a.entries[k] = e; e.move(p, now) {
				begun++
			}
			if p.err != nil {
				none = append(none, e)
			}
		}
	}
	return begun, none
}

// warn says of addresses that are not announced, when they or their reasons changed.
func (a *Announcer) warn(none []*entry) {
	if len(none) == 0 {
		a.warned = ""
		return
	}
	var b strings.Builder
	for _, e := range none {
		fmt.Fprintln(&b, e.addr, e.err)
	}
	if b.String() == a.warned {
		return
	}
	a.warned = b.String()
	e := none[0]
	a.log.Warn("addresses are not announced to neighbours", "count", len(none), "first", e.addr, "err", e.err)
}
