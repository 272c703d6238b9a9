package proxier

import (
	"context"
	"errors"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
)

// errStuck is the cause when a Sync or a Look was given up.
var errStuck = errors.New("no progress for too long")

type progressKey struct{}

// Progressed says that a part of the work under ctx is done. A Sync or a Look may
// take as long as it has to, but each of its parts must end within
// Config.SyncTimeout: what hangs is given up, what is merely large is not.
func Progressed(ctx context.Context) {
	if p, ok := ctx.Value(progressKey{}).(*progress); ok {
		p.mark()
	}
}

// A progress watches over one piece of work.
type progress struct {
	limit time.Duration // of each part

	mu    sync.Mutex
	by    time.Time // when the present part must have ended
	timer *time.Timer
}

// watchProgress returns a context for work of which each part may take limit. It
// ends, with the cause errStuck, when a part takes longer. stop releases it.
func watchProgress(ctx context.Context, limit time.Duration) (_ context.Context, p *progress, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p = &progress{limit: limit, by: time.Now().Add(limit)}
	p.timer = time.AfterFunc(limit, func() { cancel(errStuck) })
	return context.WithValue(ctx, progressKey{}, p), p, func() {
		p.timer.Stop()
		cancel(context.Canceled)
	}
}

func (p *progress) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.by = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// alive returns now, or when the part that is overdue should have ended.
func (p *progress) alive() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return times.Earlier(time.Now(), p.by)
}
