package daemon

import (
	"context"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source/file"
)

// An applier notes whether what it is asked for may go on, and ends.
type applier struct {
	versioned
	err  error
	ends bool
}

func (a *applier) Apply(ctx context.Context, _ time.Duration) (file.Application, error) {
	a.err = ctx.Err()
	_, a.ends = ctx.Deadline()
	return file.Application{}, nil
}

// A client that goes away does not interrupt an apply, which has a limit of its own.
func TestApplyWhole(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var a applier
	if _, err := applyWhole(ctx, &a, time.Minute); err != nil || a.err != nil || !a.ends {
		t.Errorf("%v; apply was given a context that ended: %v, has an end: %v", err, a.err, a.ends)
	}
}
