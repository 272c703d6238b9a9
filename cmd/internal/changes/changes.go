// Package changes tracks changes of states on this host: of endpoints, addresses, announcements, files, routers, the mode,
// the host and repairs. It alone decides what a change is, for both the event stream of the status page and notifications.
//
// States are compared once a second while there are watchers. If an object changes several times within a second, only its
// last state is recorded.
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
	State  string    `json:"state,omitempty"` // empty: the object is gone
	Was    string    `json:"was,omitempty"`   // state before the change; empty: the object is new
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // when the change was noticed

	Number uint64 `json:"-"` // position in the order of all changes
	pass   uint64 // the last pass that saw the object
}

// Nothing reports whether the object appeared and disappeared again, so that there is nothing to report.
func (ch *Change) Nothing() bool { return ch.State == "" && ch.Was == "" }

const (
	// Moment is how often states are compared.
	Moment = time.Second

	// MaxObjects is how many objects are tracked. Each takes about 300 bytes while there are watchers.
	MaxObjects = 200_000

	// MaxReason is the maximum length of a reason, in characters.
	MaxReason = 400

	// maxGone is how many objects that are gone are remembered.
	maxGone = 10_000

	// rememberFor is how long changes are remembered after the last watcher has left.
	rememberFor = time.Minute
)

// Config has the functions that a Tracker gets states from. They may be called from any goroutine.
type Config struct {
	Snapshot func() *report.Snapshot
	Sources  func() []source.Status     // must not read from a disk
	Sessions func() []announcer.Session // sessions with routers, without counts
	Mode     func() (name, why string)  // the mode in use
}

// A Tracker has the last change of each object. Changes are numbered. A watcher that has read up to some number reads the
// changes with higher numbers: even after a long time it gets the last state of each changed object, once. Methods may be
// called from any goroutine.
type Tracker struct {
	Config
	repairs repairs

	watching sync.Mutex // locked before mu
	watchers int
	end      *time.Timer // calls forget; nil: not running

	mu      sync.Mutex
	at      time.Time // of the last pass
	passes  uint64
	last    uint64 // number of the last change
	from    uint64 // changes up to this one may have been forgotten; a watcher with a lower number must read everything
	gone    int    // number of objects that are gone
	objects map[report.Object]*list.Element
	order   *list.List // of *Change, by number
	tooMany bool
}

// New returns a Tracker without watchers.
func New(c Config) *Tracker {
	return &Tracker{Config: c, repairs: repairs{of: make(map[policy.Family]repair)}}
}

// Join adds a watcher, until it calls Leave.
func (c *Tracker) Join() {
	c.watching.Lock()
	defer c.watching.Unlock()
	c.watchers++
	if c.end != nil {
		c.end.Stop()
		c.end = nil
	}
}

// Leave removes a watcher.
func (c *Tracker) Leave() {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.watchers--; c.watchers == 0 {
		c.end = time.AfterFunc(rememberFor, c.forget)
	}
}

// forget forgets all changes, unless there is a watcher again.
func (c *Tracker) forget() {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.watchers == 0 {
		c.clear()
	}
}

// Update compares the states with the last ones, unless it did so less than a Moment ago. Only watchers may call it.
func (c *Tracker) Update() { c.update(c.eachState) }

// update is Update with the function that visits all objects.
func (c *Tracker) update(each func(visit func(o report.Object, state string, why func() string))) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < Moment*9/10 { // watchers call it about once per Moment
		return
	}
	c.at = time.Now()
	first := c.objects == nil
	if first {
		c.objects, c.order = make(map[report.Object]*list.Element), list.New()
		c.last++ // so that the number of an earlier watcher is below from
		c.from = c.last
	}
	c.passes++
	c.tooMany = false
	each(func(o report.Object, state string, why func() string) { c.see(o, state, why, first) })
	c.bury()
}

// see records the state of an object. If several objects have the same name, the first one is used.
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

// change records a new state of an object.
func (c *Tracker) change(e *list.Element, state, reason string) {
	ch := e.Value.(*Change)
	c.last++
	ch.Was, ch.State, ch.Reason, ch.At, ch.Number = ch.State, state, reason, c.at, c.last
	c.order.MoveToBack(e)
}

// bury records that the objects which the last pass has not seen are gone. If too many are gone, it forgets the oldest.
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
			c.from, c.gone, ch.Number = ch.Number, c.gone-1, 0 // cursors that point to it no longer match
		}
		e = next
	}
}

// A Cursor is the position up to which a watcher has read.
type Cursor struct {
	Number uint64        // of the last change that was read
	at     *list.Element // that change, unless its object has changed again or was forgotten
}

// Since returns up to most changes after a cursor, the oldest first, and advances the cursor.
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

// Position returns the number of the last change, the number after which all changes are known, and whether there are more
// objects than MaxObjects.
func (c *Tracker) Position() (last, from uint64, tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.from, c.tooMany
}

// Get returns the last change of an object, unless it was forgotten.
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

// clear forgets all objects.
func (c *Tracker) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.order, c.gone, c.at = nil, nil, 0, time.Time{}
}
