// Package awaited records what a piece of work waits for, such as a program or a lock, so that
// others can name what may never answer.
package awaited

import (
	"context"
	"slices"
	"sync"
	"time"
)

// recordKey is that of a Record in a context, by its address.
var recordKey int

// A Record holds what work under one context waits for. Its methods may be called from any goroutine.
type Record struct {
	mu    sync.Mutex
	waits []*Wait // the oldest first
}

// A Wait is one thing that work waits for.
type Wait struct {
	For    string // as in "ip6tables-restore"; empty: nothing
	Detail string // what is known of it besides
	Since  time.Time

	detail func() string // makes Detail; nil: there is none
}

// Watch returns a context whose work is recorded.
func Watch(ctx context.Context) (context.Context, *Record) {
	r := new(Record)
	return context.WithValue(ctx, &recordKey, r), r
}

// Begin records that the work under ctx waits from now on, until end is called. detail, if not nil, is
// called only when the wait is reported, from any goroutine.
func Begin(ctx context.Context, what string, detail func() string) (end func()) {
	r, ok := ctx.Value(&recordKey).(*Record)
	if !ok {
		return func() {}
	}
	w := &Wait{For: what, Since: time.Now(), detail: detail}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = append(r.waits, w)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waits = slices.DeleteFunc(r.waits, func(o *Wait) bool { return o == w })
	}
}

// Latest returns what the work began to wait for last and still does.
func (r *Record) Latest() (w Wait) {
	r.mu.Lock()
	if n := len(r.waits); n > 0 {
		w = *r.waits[n-1]
	}
	r.mu.Unlock()
	if w.detail != nil {
		w.Detail = w.detail() // which may take its time
	}
	return w
}
