package loop

import (
	"context"
	"svcproxy.dev/svcproxy/proxier"
	"time"
)

// A lookout schedules the looks of a family, which compare the kernel with what was
// written while Syncs go on.
type lookout struct {
	last   time.Time // when a look ended, or a Sync compared everything
	wanted bool      // a look is due at once
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

func newLookout() lookout { return lookout{result: make(chan finding, 1)} }

// stop ends the running look and waits for it, so that its backend can be closed.
func (l *lookout) stop() {
	if l.cancel == nil {
		return
	}
	l.cancel()
	<-l.result
	l.cancel = nil
}

// lookAt returns when the next look is due: far in the future while one runs, and
// while Syncs fail, because the next Sync compares everything.
func (f *family) lookAt() time.Time {
	if f.lookout.cancel != nil || f.news.err != nil || f.news.good.IsZero() {
		return time.Now().Add(time.Hour)
	}
	if f.lookout.wanted {
		return time.Time{}
	}
	return f.lookout.last.Add(f.lookEvery)
}

// lookIfDue starts a look if one is due.
func (f *family) lookIfDue(ctx context.Context) {
	if f.lookAt().After(time.Now()) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	f.lookout.cancel, f.lookout.wanted = cancel, false
	b := f.backend
	go func() {
		f.lookout.result <- f.compare(ctx, b)
	}()
}

// compare looks at the kernel.
func (f *family) compare(ctx context.Context, b proxier.Backend) finding {
	limited, stop := f.watch(ctx, lookWork, &f.news.looking)
	defer stop()
	repair, err := b.Look(limited)
	switch {
	case err != nil && ctx.Err() == nil:
		f.cfg.Log.Warn("the kernel could not be compared with what it should hold: comparing everything in a sync", "family", f.fam, "err", err)
		return unknown
	case repair:
		f.cfg.Log.Warn("the kernel does not hold what was written: repairing it", "family", f.fam)
		return differs
	}
	return asWritten
}

// looked records the result of a look.
func (f *family) looked(what finding) {
	f.lookout.cancel()
	f.lookout.cancel, f.lookout.last = nil, time.Now()
	f.dirty = f.dirty || what != asWritten
	f.full = f.full || what == unknown
	f.broken = f.broken || what == differs
	switch what {
	case differs:
		f.cause(Difference)
	case unknown:
		f.cause(Unreadable)
	}
	if what != asWritten {
		f.tellQueued()
	}
}
