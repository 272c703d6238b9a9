//go:build netns

package lab

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// longestPause of a writer leaves the rest of quietTime to a busy machine.
var longestPause = soak(60*time.Millisecond, 90*time.Millisecond)

// latePause is when a machine has kept a writer waiting for so long that what it
// has written so far may count as all of it, which is quietTime less what the write itself takes.
const latePause = quietTime / 2

// A pause is one of a writer in the middle of a version. It has no end while it lasts.
type pause struct{ start, end time.Time }

// late reports whether it may have been taken for the end of the version.
func (p pause) late() bool {
	end := p.end
	if end.IsZero() {
		end = time.Now()
	}
	return end.Sub(p.start) > latePause
}

// pauses are those of writers in each directory: one that lasts, or was late.
var pauses = struct {
	sync.Mutex
	in map[string][]*pause
}{in: make(map[string][]*pause)}

// briefly waits in the middle of a version of a file in dir.
func briefly(dir string) {
	_ = inTheMiddle(dir, func() error {
		time.Sleep(rand.N(longestPause))
		return nil
	})
}

// inTheMiddle does what keeps a writer of dir in the middle of something.
func inTheMiddle(dir string, do func() error) error {
	p := &pause{start: time.Now()}
	pauses.Lock()
	pauses.in[dir] = append(pauses.in[dir], p)
	pauses.Unlock()
	err := do()
	pauses.Lock()
	defer pauses.Unlock()
	p.end = time.Now()
	if !p.late() {
		pauses.in[dir] = slices.DeleteFunc(pauses.in[dir], func(o *pause) bool { return o == p })
	}
	return err
}

// writerWasLate reports whether what is met at a time may be what a version says of
// which a writer in dir had not written the rest.
func writerWasLate(dir string, at time.Time) bool {
	pauses.Lock()
	defer pauses.Unlock()
	for _, p := range pauses.in[dir] {
		if p.late() && at.After(p.start) && (p.end.IsZero() || at.Before(p.end.Add(followPatience))) {
			return true
		}
	}
	return false
}
