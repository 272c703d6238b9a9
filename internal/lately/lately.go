package daemon

import (
	"sync"
	"time"
)

// lately is a value that takes time to find, and is found again when it is asked for and
// older than a moment. A caller is kept no longer than patience: then, or while a
// disk hangs, the one found last has to do.
type lately[T any] struct {
	find     func() T
	moment   time.Duration
	patience time.Duration

	mu    sync.Mutex
	value T
	at    time.Time     // zero: never found
	found chan struct{} // is closed when it is; nil: nobody looks
}

// get returns the value, and the zero value if none was found in time.
func (l *lately[T]) get() T {
	if done := l.begin(); done != nil {
		timer := time.NewTimer(l.patience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value
}

// begin has the value found again, unless it is new. It returns what to wait for.
func (l *lately[T]) begin() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found == nil && (l.at.IsZero() || time.Since(l.at) >= l.moment) {
		l.found = make(chan struct{})
		go l.look()
	}
	return l.found
}

func (l *lately[T]) look() {
	value := l.find()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value, l.at = value, time.Now()
	close(l.found)
	l.found = nil
}
