package disk

import (
	"errors"
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

	// maxUnanswered is how many questions may go unanswered before no other is asked beyond the directory: each has a thread.
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
	total      int            // of them
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
	for at := path; d.total > 0; {
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

func (d *Asker) count(path string, n int) {
	add(d.unanswered, path, n)
	add(d.below, filepath.Dir(path), n)
	d.total += n
}

// add adds to a count that is kept while it is not 0.
func add(counts map[string]int, path string, n int) {
	if counts[path] += n; counts[path] == 0 {
		delete(counts, path)
	}
}

// Writer is trust.Writer, which is waited for no longer than anything else.
func (d *Asker) Writer(path string) (string, error) {
	type answer struct {
		who string
		err error
	}
	a, ok := Ask(d, path, func() (a answer) {
		a.who, a.err = trust.Writer(path)
		return a
	})
	if !ok {
		return "", ErrNoAnswer
	}
	return a.who, a.err
}

// crowded reports whether so much is unanswered that nothing else should be asked.
func (d *Asker) crowded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.total >= maxUnanswered
}
