package journal

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A Queue holds up to maxLines lines and maxBytes bytes, 256 for each. To write a line to the journal takes some five times
// as long as to log it, so that there must be room for many that come at once.
const (
	maxLines = 4096
	maxBytes = 1 << 20
)

// endPatience is how long what does not read can keep svcproxy from ending: half of what that may take, of which a disk
// may take the other half.
const endPatience = 500 * time.Millisecond

// A Queue stands between a program and what takes its log. That may stop reading, as systemd-journald does on a disk that
// does not answer, and then all goroutines that log would wait, and those that wait for them. Of a Queue only its own
// goroutine waits: what there is no room for is dropped, counted and told of.
type Queue struct {
	w     io.Writer
	lines chan []byte   // with room for maxLines, and the one that tells of those that were dropped
	ended chan struct{} // closed by the goroutine

	mu      sync.Mutex // never held while w is written to
	n       int        // lines that are not written yet, with the one that is being written
	bytes   int        // in them
	dropped int        // lines since one had no room; 0: none since that was told
	closed  bool
	telling func(dropped int) []byte
}

// NewQueue returns a queue that writes to w, each line in one write, until it is closed.
func NewQueue(w io.Writer) *Queue {
	q := &Queue{
		w: w, lines: make(chan []byte, maxLines+1), ended: make(chan struct{}),
		telling: func(int) []byte { return nil },
	}
	go func() {
		defer close(q.ended)
		for line := range q.lines {
			_, _ = q.w.Write(line) // nobody could be told
			q.passed(len(line))
		}
	}()
	return q
}

// Write implements io.Writer; p is a line. It does not say whether p will be written.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return 0, os.ErrClosed
	case q.dropped > 0 || q.n == maxLines || q.n > 0 && q.bytes+len(p) > maxBytes: // an empty queue takes a line of any length
		q.dropped++
	default:
		q.add(bytes.Clone(p))
	}
	return len(p), nil
}

func (q *Queue) add(line []byte) {
	q.n++
	q.bytes += len(line)
	q.lines <- line
}

// passed makes room. Once lines were dropped, all are until half of the queue is empty: where w is only slow, its lines
// would else be as many of what was dropped as of the log.
func (q *Queue) passed(line int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.n--
	q.bytes -= line
	if !q.closed && q.n <= maxLines/2 && q.bytes <= maxBytes/2 {
		q.insertDropped()
	}
}

// insertDropped adds a line that says how many lines were dropped at this place.
func (q *Queue) insertDropped() {
	if q.dropped == 0 {
		return
	}
	if line := q.telling(q.dropped); len(line) > 0 {
		q.add(line)
	}
	q.dropped = 0
}

// reportDroppedBy has q report dropped lines through a handler that newHandler makes.
func (q *Queue) reportDroppedBy(newHandler func(io.Writer) slog.Handler) {
	var line bytes.Buffer
	log := slog.New(newHandler(&line))
	q.mu.Lock()
	defer q.mu.Unlock()
	q.telling = func(dropped int) []byte {
		line.Reset()
		log.Warn("dropped log lines; the log reader is too slow", "lines", dropped)
		return bytes.Clone(line.Bytes())
	}
}

// Warnings returns what status says of q.
func (q *Queue) Warnings() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped == 0 {
		return nil
	}
	return []string{fmt.Sprintf("what takes the log does not read: lines of the log are dropped, %d so far", q.dropped)}
}

// Close ends q when what it holds is written, or cannot be for endPatience. What is written to q later is lost.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.insertDropped()
		q.closed = true
		close(q.lines)
	}
	q.mu.Unlock()
	select {
	case <-q.ended:
	case <-time.After(endPatience):
	}
}
