package announcer

import "context"

// progress is how far the network has been told of what is announced. Announcer.mu guards it.
type progress struct {
	works     bool          // Run tells
	announced uint64        // calls of Announce
	told      uint64        // of these
	more      chan struct{} // closed when told grows, or Run ends
}

// Told waits until all that was announced before has been handed to the Speaker and to neighbours, as far as
// these are told of anything, and returns how many routes are marked now, to be withdrawn. The
// error is the cause of the end of ctx.
func (a *Announcer) Told(ctx context.Context) (marked int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for want := a.progress.announced; a.progress.works && a.progress.told < want; {
		more := a.progress.more
		a.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if a.mu.Lock(); err != nil {
			return 0, err
		}
	}
	if a.running == nil {
		return 0, nil
	}
	return len(a.routes.going), nil
}

// noteTold notes that so much has been told, and whether Run goes on.
func (a *Announcer) noteTold(told uint64, works bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &a.progress
	p.told, p.works = told, works
	if p.more != nil {
		close(p.more)
	}
	p.more = make(chan struct{})
}
