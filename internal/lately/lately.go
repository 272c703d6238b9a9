// Package lately has values that take time to find, for those who cannot wait: a disk may hang.
package lately

import (
	"sync"
	"time"
)

// A Value is found again when it is asked for and older than Moment. A caller is kept no longer than
// Patience: then, or while a disk hangs, the one found last has to do.
type Value[T any] struct {
	Find     func() T
	Moment   time.Duration // 0: each time
	Patience time.Duration

	mu    sync.Mutex
	value T
	at    time.Time     // zero: never found
	found chan struct{} // is closed when it is; nil: nobody looks
}

// Get returns the value that was found last, zero if none ever was, and reports whether it was found in time.
func (l *Value[T]) Get() (T, bool) {
	inTime := true
	if done := l.begin(); done != nil {
		timer := time.NewTimer(l.Patience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			inTime = false
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, inTime
}

// Begin has the value found again, unless it is new, and waits for nothing.
func (l *Value[T]) Begin() { l.begin() }

// begin has the value found again, unless it is new. It returns what to wait for.
func (l *Value[T]) begin() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found == nil && (l.at.IsZero() || time.Since(l.at) >= l.Moment) {
		l.found = make(chan struct{})
		go l.refresh()
	}
	return l.found
}

func (l *Value[T]) refresh() {
	value := l.Find()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value, l.at = value, time.Now()
	close(l.found)
	l.found = nil
}
