package disk

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/internal/trust"
	"svcproxy.dev/svcproxy/internal/wake"
)

const (
	// Patience is how long a step waits for one answer of a file system: NFS whose server is gone, and FUSE that nobody
	// serves, may never give one. A disk that has to start turning takes longer, and is looked at again when it does answer.
	Patience = 2 * time.Second

	// FirstPatience is the same for the first look, without which nothing is known of a file that has no copy.
	FirstPatience = 5 * time.Second

	// nextPatience is how long the same step waits for each further answer, once one has not come.
	nextPatience = 200 * time.Millisecond

	// manyBelow is how many questions about what is in one directory may go unanswered before nothing else in it is asked about.
	manyBelow = 8

	// maxUnanswered is how many questions may go unanswered before no other link is followed: each has a thread.
	maxUnanswered = 256
)

// ErrNoAnswer says why a file cannot be read that may be there.
var ErrNoAnswer = errors.New("its file system does not answer")

// An Asker asks file systems, and waits for none of them for long. A nil one waits for each answer. Its methods may be called
// from any goroutine.
type Asker struct {
	dir      string        // of service files: it is asked about whatever becomes of the files
	Answered chan struct{} // receives a value after something was answered late

	mu         sync.Mutex
	unanswered map[string]int // questions that were given up, and have not been answered yet, by path
	below      map[string]int // the same, by the directory that the path is in
	patience   time.Duration
}

// NewAsker returns one for a directory of files. Its first step waits for FirstPatience.
func NewAsker(dir string) *Asker {
	return &Asker{
		dir: filepath.Clean(dir), Answered: make(chan struct{}, 1),
		unanswered: map[string]int{}, below: map[string]int{}, patience: FirstPatience,
	}
}

// BeginStep sets for how long the next step waits.
func (d *Asker) BeginStep(patience time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.patience = patience
}

// Ask returns what do, run beside, finds out about path, and reports whether that came in time.
// Until it has come, nothing is asked about the path, nor about what is below it.
func Ask[T any](d *Asker, path string, do func() T) (got T, ok bool) {
	if d == nil {
		return do(), true
	}
	path = filepath.Clean(path)
	patience, ok := d.patienceFor(path)
	if !ok {
		return got, false
	}
	answer := make(chan T, 1)
	go func() { answer <- do() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case got = <-answer:
		return got, true
	case <-timer.C:
	}
	select {
	case got = <-answer: // both had come: this process was stopped
		return got, true
	default:
		d.giveUp(path)
		go func() { <-answer; d.noteAnswer(path) }()
		return got, false
	}
}

// patienceFor returns how long an answer about path is waited for. It returns false where there will be none.
func (d *Asker) patienceFor(path string) (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := path; len(d.unanswered) > 0; {
		up := filepath.Dir(at)
		if d.unanswered[at] > 0 || d.below[up] >= manyBelow && up != d.dir {
			return 0, false
		}
		if up == at {
			break
		}
		at = up
	}
	return d.patience, true
}

// crowded reports whether so much is unanswered that no link should be followed.
func (d *Asker) crowded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.unanswered) >= maxUnanswered
}

func (d *Asker) giveUp(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unanswered[path]++
	d.below[filepath.Dir(path)]++
	d.patience = min(d.patience, nextPatience)
}

func (d *Asker) noteAnswer(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	release(d.unanswered, path)
	release(d.below, filepath.Dir(path))
	wake.Once(d.Answered)
}

// release takes one from a count that is kept while it is not 0.
func release(counts map[string]int, path string) {
	if counts[path]--; counts[path] == 0 {
		delete(counts, path)
	}
}

// askBoth is Ask for what fails with an error, which is ErrNoAnswer where no answer comes in time.
func askBoth[T any](d *Asker, path string, do func() (T, error)) (got T, err error) {
	type answer struct {
		got T
		err error
	}
	a, ok := Ask(d, path, func() (a answer) {
		a.got, a.err = do()
		return a
	})
	if !ok {
		return got, ErrNoAnswer
	}
	return a.got, a.err
}

// Answer calls read, which reads path, and returns its result. If read takes more than 5 s, because the file system of path
// does not answer, Answer returns ErrNoAnswer and leaves read running. So it must not be called again and again by a process
// that stays: each call may leave a thread behind.
func Answer[T any](path string, read func() (T, error)) (T, error) {
	got, err := askBoth(NewAsker(filepath.Dir(path)), path, read)
	if err == ErrNoAnswer {
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return got, err
}

// Writer is trust.Writer, which is waited for no longer than anything else.
func (d *Asker) Writer(path string) (string, error) {
	return askBoth(d, path, func() (string, error) { return trust.Writer(path) })
}
