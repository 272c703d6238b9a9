package disk

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"sync/atomic"
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

	// maxUnanswered is how many paths and directories may not answer before only the directory of files is asked: each
	// question has a thread.
	maxUnanswered = 256
)

// ErrNoAnswer says why a file cannot be read that may be there.
var ErrNoAnswer = errors.New("its file system does not answer")

// An Asker asks file systems, and waits for none of them for long. Its methods may be called from any goroutine.
type Asker struct {
	dir      string        // of service files: it is asked about whatever becomes of the files
	Answered chan struct{} // receives a value after something was answered late

	mu         sync.Mutex
	unanswered map[string]int // given up, and not answered yet: manyBelow for each question about a path, 1 for each about what is in it
	patience   time.Duration
}

// NewAsker returns one for a directory of files. Its first step waits for FirstPatience.
func NewAsker(dir string) *Asker {
	return &Asker{
		dir: filepath.Clean(dir), Answered: make(chan struct{}, 1),
		unanswered: map[string]int{}, patience: FirstPatience,
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
	d.mu.Lock()
	patience := d.patience
	d.mu.Unlock()
	return askWhile(d, path, patience, new(atomic.Int64), do)
}

// askWhile is Ask with a patience of its own, for each time that do comes further.
func askWhile[T any](d *Asker, path string, patience time.Duration, progress *atomic.Int64, do func() T) (got T, ok bool) {
	path = filepath.Clean(path)
	if !d.mayAnswer(path) {
		return got, false
	}
	answer := make(chan T, 1)
	go func() { answer <- do() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for was := int64(-1); was != progress.Load(); timer.Reset(patience) {
		was = progress.Load()
		select {
		case got = <-answer:
			return got, true
		case <-timer.C:
		}
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

// mayAnswer reports whether path is worth asking about.
func (d *Asker) mayAnswer(path string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := path; len(d.unanswered) > 0; at = filepath.Dir(at) {
		switch {
		case d.unanswered[at] >= manyBelow:
			return false
		case at == d.dir: // whatever is beside it, or over it
			return true
		case at == filepath.Dir(at):
			return len(d.unanswered) < maxUnanswered
		}
	}
	return true
}

func (d *Asker) giveUp(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count(path, 1)
	d.patience = min(d.patience, nextPatience)
}

func (d *Asker) noteAnswer(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count(path, -1)
	wake.Once(d.Answered)
}

// count counts n more questions about path as unanswered.
func (d *Asker) count(path string, n int) {
	d.add(path, n*manyBelow)
	if dir := filepath.Dir(path); dir != d.dir { // which is asked about whatever becomes of its files
		d.add(dir, n)
	}
}

func (d *Asker) add(path string, n int) {
	if d.unanswered[path] += n; d.unanswered[path] == 0 {
		delete(d.unanswered, path)
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
