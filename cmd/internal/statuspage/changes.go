package statuspage

import (
	"container/list"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
)

// fileObject is the kind of a file, or an object of an API. Its states are source.FileStates.
const fileObject = "file"

// A Change is the last change of the state of an object.
type Change struct {
	report.Object
	State  string    `json:"state,omitempty"` // empty: it is gone
	Was    string    `json:"was,omitempty"`   // before the last change; empty: it was not there
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // when it was seen

	number uint64 // of all changes
	pass   uint64 // that saw the object last
}

const (
	// maxObjects is how many objects are watched. Each takes some 300 bytes while a client watches.
	maxObjects = 200_000

	// maxGone is how many objects are remembered that are gone.
	maxGone = 10_000
)

// changes have the last change of each object. A client that has seen some number needs those with a higher one: however
// long it was away, it gets the last state of each object once. Methods may be called from any goroutine.
type changes struct {
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

// update compares with what each calls its argument with: all objects. It does nothing where that was done a moment ago.
func (c *changes) update(each func(visit func(o report.Object, state string, why func() string))) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < moment*9/10 { // clients ask once a moment, more or less
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
func (c *changes) see(o report.Object, state string, why func() string, first bool) {
	e, known := c.objects[o]
	if !known {
		if len(c.objects)-c.gone >= maxObjects {
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
		reason = clip(why())
	}
	c.change(e, state, reason)
}

// change gives an object another state.
func (c *changes) change(e *list.Element, state, reason string) {
	ch := e.Value.(*Change)
	c.last++
	ch.Was, ch.State, ch.Reason, ch.At, ch.number = ch.State, state, reason, c.at, c.last
	c.order.MoveToBack(e)
}

// bury notes which objects the last pass has not seen, and forgets those that have been gone longest.
func (c *changes) bury() {
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
			c.from, c.gone, ch.number = ch.number, c.gone-1, 0 // no cursor is there any more
		}
		e = next
	}
}

// A cursor is how far a client has read.
type cursor struct {
	number uint64        // of the last change
	at     *list.Element // the change, unless its object has changed again or is forgotten
}

// since returns up to most changes behind a cursor, the oldest first, and moves it.
func (c *changes) since(seen *cursor, most int) (out []Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.order == nil {
		return nil
	}
	e := seen.at
	if e == nil || e.Value.(*Change).number != seen.number {
		for e = c.order.Back(); e != nil && e.Value.(*Change).number > seen.number; e = e.Prev() {
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
		seen.number, seen.at = ch.number, e
		out = append(out, *ch)
	}
	return out
}

// position returns the number of the last change, and from which number on all changes are known.
func (c *changes) position() (last, from uint64, tooMany bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.from, c.tooMany
}

// clear forgets all.
func (c *changes) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects, c.order, c.gone, c.at = nil, nil, 0, time.Time{}
}
