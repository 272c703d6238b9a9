// Package awaited records what a piece of work waits for, such as a program or a lock, so that
// others can name what may never answer.
package awaited

import (
	"context"
	"slices"
	"sync"
	"time"
)

type recordKey struct{}

// A Record holds what work under one context waits for. Its methods may be called from any goroutine.
type Record struct {
	mu      sync.Mutex
	entries []*entry // the oldest first
}

// A Wait is one thing that work waits for.
type Wait struct {
	For    string // as in "ip6tables-restore"; empty: nothing
	Detail string // what is known of it besides
	Since  time.Time
}

type entry struct {
	what   string
	detail func() string
	since  time.Time
}

// Watch returns a context whose work is recorded.
func Watch(ctx context.Context) (context.Context, *Record) {
	r := new(Record)
	return context.WithValue(ctx, recordKey{}, r), r
}

// Begin records that the work under ctx waits from now on, until end is called. detail, if not nil, is
// called only when the wait is reported, from any goroutine.
func Begin(ctx context.Context, what string, detail func() string) (end func()) {
	r, ok := ctx.Value(recordKey{}).(*Record)
	if !ok {
		return func() {}
	}
	e := &entry{what, detail, time.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
	return func() { r.end(e) }
}

func (r *Record) end(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = slices.DeleteFunc(r.entries, func(o *entry) bool { return o == e })
}

// Latest returns what the work began to wait for last and still does.
func (r *Record) Latest() (w Wait) {
	e := r.latest()
	if e == nil {
		return w
	}
	w = Wait{For: e.what, Since: e.since}
	if e.detail != nil {
		w.Detail = e.detail()
	}
	return w
}

func (r *Record) latest() *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		return nil
	}
	return r.entries[len(r.entries)-1]
}
