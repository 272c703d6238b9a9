package file

import "time"

// A stepTimer says when the next step is.
type stepTimer struct {
	timer *time.Timer
	at    time.Time
	last  time.Time // the end of the last step that found out about a file
}

// newStepTimer returns one that goes off now.
func newStepTimer() *stepTimer { return &stepTimer{timer: time.NewTimer(0), at: time.Now()} }

// stepped is to be called after a step, which found out about a file or not, with the time to the next.
func (t *stepTimer) stepped(found bool, wait time.Duration) {
	now := time.Now()
	if found {
		t.last = now
	}
	t.at = now.Add(wait)
	t.timer.Reset(wait)
}

// within makes the next step come no later than after wait.
func (t *stepTimer) within(wait time.Duration) {
	if at := time.Now().Add(wait); at.Before(t.at) {
		t.at = at
		t.timer.Reset(wait)
	}
}

// soon makes the next step come at once, or mergeTime after the last one that found out about a file: of many files that are
// renamed one after the other, not each is to be a step of its own. One that only began to read a large file holds nothing up.
func (t *stepTimer) soon() { t.within(max(0, mergeTime-time.Since(t.last))) }

// Waits of a running Source.
const (
	// mergeTime is how long events are collected that belong to one write in place, or
	// to many files written at once.
	mergeTime = 5 * time.Millisecond

	// quietTime is how long a file must have been left alone before a version
	// of it counts that takes something away, or that is broken.
	quietTime = 200 * time.Millisecond

	// busyTime is for how long a file must have been changing all the time for a
	// version to count because nobody has it open.
	busyTime = time.Second

	// maxWait is how long anything waits.
	maxWait = 2 * time.Second

	// openPoll is how often a file is looked at that waits because a process has it
	// open to write it: no event tells that it is closed.
	openPoll = 20 * time.Millisecond

	// goneTime is how long a file must be missing before it counts as removed:
	// editors have a moment without the file.
	goneTime = 300 * time.Millisecond

	// blindPoll is how often the directory is listed while it cannot be watched.
	blindPoll = time.Second

	// hashPoll is how often contents are compared, for what no event told.
	hashPoll = 30 * time.Second
)

// clock returns a time as people read it.
func clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }
