// Package changes says which states on this host change: of endpoints, addresses, announcements, files, routers, the mode,
// the host and what is repaired. It is the one place that decides what a change is, for the event stream of the status page and
// for notifications.
//
// States are compared once a second while someone watches. An object that changes faster has one change, to its last state.
package changes

import (
	"container/list"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Change is the last change of the state of an object.
type Change struct {
	report.Object
	State  string    `json:"state,omitempty"` // empty: it is gone
	Was    string    `json:"was,omitempty"`   // before the last change; empty: it was not there
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // when it was seen

	Number uint64 `json:"-"` // of all changes, in order
	pass   uint64 // that saw the object last
}

// Nothing reports whether the object came and went again: there is nothing to tell.
func (ch *Change) Nothing() bool { return ch.State == "" && ch.Was == "" }

const (
	// Moment is how often states are compared.
	Moment = time.Second

	// MaxObjects is how many objects are watched. Each takes some 300 bytes while someone watches.
	MaxObjects = 200_000

	// MaxReason is how long a reason is, in characters.
	MaxReason = 400

	// maxGone is how many objects are remembered that are gone.
	maxGone = 10_000

	// rememberFor is for how long changes are remembered when nobody watches any more.
	rememberFor = time.Minute
)

// Config is where a Tracker gets states from. All of it is called from any goroutine.
type Config struct {
	Snapshot func() *report.Snapshot
	Sources  func() []source.Status     // without a look at a disk
	Sessions func() []announcer.Session // with routers, without numbers
	Mode     func() (name, why string)  // that is in use
}

// A Tracker has the last change of each object. Who has seen some number needs those with a higher one: however long it was
// away, it gets the last state of each object once. Methods may be called from any goroutine.
type Tracker struct {
	Config
	repairs repairs

	watching sync.Mutex // before mu
	watchers int
	end      *time.Timer // forgets what is watched; nil: it does not run

	mu      sync.Mutex
	at      time.Time // of the last pass
	passes  uint64
	last    uint64 // number of the last change
	from    uint64 // changes up to this one may have been forgotten: who has seen less has to read everything
	gone    int
	objects map[report.Object]*list.Element
	order   *list.List // of *Change, by number
	tooMany bool
}

// New returns a Tracker that nobody watches.
func New(c Config) *Tracker {
	return &Tracker{Config: c, repairs: repairs{of: make(map[policy.Family]repair)}}
}

// Join counts a watcher in, until it calls Leave.
func (c *Tracker) Join() {
	c.watching.Lock()
	defer c.watching.Unlock()
	c.watchers++
	if c.end != nil {
		c.end.Stop()
		c.end = nil
	}
}

// Leave counts a watcher out.
func (c *Tracker) Leave() {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.watchers--; c.watchers == 0 {
		c.end = time.AfterFunc(rememberFor, c.forget)
	}
}

// forget forgets what was watched, if nobody watches.
func (c *Tracker) forget() {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.watchers == 0 {
		c.clear()
	}
}

// Update compares states with those of before, unless that was done a moment ago. It is for watchers.
func (c *Tracker) Update() { c.update(c.eachState) }

// update compares with what each calls its argument with: all objects. It does nothing where that was done a moment ago.
func (c *Tracker) update(each func(visit func(o report.Object, state string, why func() string))) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < Moment*9/10 { // watchers ask once a moment, more or less
		return
	}
	c.at = time.Now()
	first := c.objects == nil
	if first {
		c.objects, c.order = make(map[report.Object]*list.Element), list.New()
		c.last++ // a client of before has not seen this one
		c.from = c.last
	}
	c.passes++
	c.tooMany = false
	each(func(o report.Object, state string, why func() string) { c.see(o, state, why, first) })
	c.bury()
}

// see notes the state of an object. Of several with one name the first counts.
func (c *Tracker) see(o report.Object, state string, why func() string, first bool) {
	e, known := c.objects[o]
	if !known {
		if len(c.objects)-c.gone >= MaxObjects {
			c.tooMany = true
			return
		}
		e = c.order.PushBack(&Change{Object: o})
		c.objects[o] = e
	}
	ch := e.Value.(*Change)
	if ch.pass == c.passes {
		return
	}
	ch.pass = c.passes
	if ch.State == state {
		return
	}
	if known && ch.State == "" {
		c.gone--
	}
	reason := ""
	if !first {
		reason = source.Clip(why(), MaxReason)
	}
	c.change(e, state, reason)
}

// change gives an object another state.
func (c *Tracker) change(e *list.Element, state, reason string) {
	ch := e.Value.(*Change)
	c.last++
	ch.Was, ch.State, ch.Reason, ch.At, ch.Number = ch.State, state, reason, c.at, c.last
	c.order.MoveToBack(e)
}

// bury notes which objects the last pass has not seen, and forgets those that have been gone longest.
func (c *Tracker) bury() {
	for _, e := range c.objects {
		if ch := e.Value.(*Change); ch.pass != c.passes && ch.State != "" {
			c.change(e, "", "")
			c.gone++
		}
	}
	for e := c.order.Front(); c.gone > maxGone; {
		next, ch := e.Next(), e.Value.(*Change)
		if ch.State == "" {
			c.order.Remove(e)
			delete(c.objects, ch.Object)
			c.from, c.gone, ch.Number = ch.Number, c.gone-1, 0 // no cursor is there any more
		}
		e = next
	}
}

// A Cursor is how far a watcher has read.
type Cursor struct {
	Number uint64        // of the last change
	at     *list.Element // the change, unless its object has changed again or is forgotten
}

// Since returns up to most changes behind a cursor, the oldest first, and moves it.
func (c *Tracker) Since(seen *Cursor, most int) (out []Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.order == nil {
		return nil
	}
	e := seen.at
	if e == nil || e.Value.(*Change).Number != seen.Number {
		for e = c.order.Back(); e != nil && e.Value.(*Change).Number > seen.Number; e = e.Prev() {
			continue
		}
	}
	if e == nil {
		e = c.order.Front()
	} else {
		e = e.Next()
	}
	for ; e != nil && len(out) < most; e = e.Next() {
		ch := e.Value.(*Change)
		seen.Number, seen.at = ch.Number, e
		out = append(out, *ch)
	}
	return out
}

// Position returns the number of the last change, and from which number on all changes are known.
func (c *Tracker) Position() (last, from uint64, tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.from, c.tooMany
}

// Get returns the last change of an object, unless that is forgotten.
func (c *Tracker) Get(o report.Object) (Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.objects[o]
	if e == nil {
		return Change{}, false
	}
	return *e.Value.(*Change), true
}

// In returns the objects of a kind that are in a state.
func (c *Tracker) In(kind, state string) (out []report.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o, e := range c.objects {
		if o.Kind == kind && e.Value.(*Change).State == state {
			out = append(out, o)
		}
	}
	return out
}

// clear forgets all.
func (c *Tracker) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.order, c.gone, c.at = nil, nil, 0, time.Time{}
}
