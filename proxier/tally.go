package proxier

import (
	"context"
	"fmt"
	"sync"
)

type tallyKey struct{}

// A Tally has what was removed from the kernel, for whoever asked for that.
type Tally struct {
	mu    sync.Mutex
	lines []string
}

// WithTally returns a context of which a Tally has what is removed under it.
func WithTally(ctx context.Context) (context.Context, *Tally) {
	t := new(Tally)
	return context.WithValue(ctx, tallyKey{}, t), t
}

// Lines says what was removed, in order: nothing where there was nothing of ours.
func (t *Tally) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines
}

// Removed says that something of ours has been removed under ctx.
func Removed(ctx context.Context, what string) {
	if t, ok := ctx.Value(tallyKey{}).(*Tally); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lines = append(t.lines, what)
	}
}

// RemovedSome says it of n things, which may be none.
func RemovedSome(ctx context.Context, what string, n int) {
	if n > 0 {
		Removed(ctx, fmt.Sprintf("%s: %d", what, n))
	}
}
