package proxier

import (
	"context"
	"fmt"
	"sync"
)

type tallyKey struct{}

// A Tally collects what a cleanup removed from the kernel, for its caller.
type Tally struct {
	mu    sync.Mutex
	lines []string
}

// WithTally returns a context and the Tally of what is removed under it.
func WithTally(ctx context.Context) (context.Context, *Tally) {
	t := new(Tally)
	return context.WithValue(ctx, tallyKey{}, t), t
}

// Lines returns what was removed, in order; none if there was nothing of ours.
func (t *Tally) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines
}

// Removed notes that something of ours was removed under ctx.
func Removed(ctx context.Context, what string) {
	if t, ok := ctx.Value(tallyKey{}).(*Tally); ok {
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
