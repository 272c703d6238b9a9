package proxier

import (
	"context"
	"fmt"
	"sync"
)

type removalsKey struct{}

// Removals collects what a cleanup removed from the kernel, for its caller.
type Removals struct {
	mu    sync.Mutex
	lines []string
}

// WithRemovals returns a context and the Removals of what is removed under it.
func WithRemovals(ctx context.Context) (context.Context, *Removals) {
	t := new(Removals)
	return context.WithValue(ctx, removalsKey{}, t), t
}

// Lines returns what was removed, in order; none if there was nothing of ours.
func (t *Removals) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines
}

// Removed notes that something of ours was removed under ctx.
func Removed(ctx context.Context, what string) {
	if t, ok := ctx.Value(removalsKey{}).(*Removals); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lines = append(t.lines, what)
	}
}

// RemovedSome notes n removed things; n may be 0.
func RemovedSome(ctx context.Context, what string, n int) {
	if n > 0 {
		Removed(ctx, fmt.Sprintf("%s: %d", what, n))
	}
}
