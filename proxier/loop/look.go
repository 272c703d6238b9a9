package loop

import (
	"context"
	"time"
)

// A lookout schedules the looks of a family, which compare the kernel with what was
// written while Syncs go on.
type lookout struct {
	every  time.Duration // as Config.LookInterval
	last   time.Time     // when a look ended, or a Sync compared everything
	wanted bool          // a look is due at once
	result chan finding
	cancel func() // of the running look; nil: none runs
}

// A finding is the result of a look.
type finding uint8

const (
	asWritten finding = iota
	differs           // the backend knows what
	unknown           // the kernel could not be read
)

func newLookout(every time.Duration) lookout {
	return lookout{every: every, result: make(chan finding, 1)}
}

// stop ends the running look and waits for it, so that its backend can be closed.
func (l *lookout) stop() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	<-l.result
	l.cancel = nil
}

// at returns when the next look is due: far in the future while one runs.
func (l *lookout) at() time.Time {
	switch {
	case l.cancel != nil:
		return time.Now().Add(time.Hour)
	case l.wanted:
		return time.Time{}
	}
	return l.last.Add(l.every)
}

// start has the kernel compared in a goroutine.
func (l *lookout) start(ctx context.Context, compare func(context.Context) finding) {
	ctx, l.cancel = context.WithCancel(ctx)
	l.wanted = false
	go func() {
		l.result <- compare(ctx)
	}()
}

// ended notes the end of the look that ran.
func (l *lookout) ended() {
	l.cancel()
	l.cancel, l.last = nil, time.Now()
}
