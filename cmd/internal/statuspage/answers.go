package statuspage

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

const (
	// maxKept is how many answers are cached at once. Further answers are rendered for each request.
	maxKept = 32

	// maxKeptSize is the maximum size of a cached answer, compressed, in bytes.
	maxKeptSize = 4 << 20

	// keptFor is how long cached answers are kept after the last request.
	keptFor = 10 * time.Second
)

var (
	errBusy       = errors.New("too many different questions are asked at once; ask again later")
	errUnfinished = errors.New("the answer could not be rendered")
)

// answers caches rendered answers for a moment. An answer is rendered once for all clients that request it meanwhile.
type answers struct {
	budget *budget
	facts  func() // waits for facts; called before waiting for a turn to render

	mu   sync.Mutex
	kept map[string]*answer // by question
	old  *time.Timer        // removes all answers; nil: there are none
}

// An answer is rendered once.
type answer struct {
	done chan struct{} // closed when the other fields are set

	at   time.Time // when rendering began
	body []byte    // compressed
	err  error
}

// get returns the answer to a question, rendered at most a moment ago. The error wraps errBusy if ctx ends first. Rendering
// continues after the client that started it has gone, because other clients may wait for the same answer.
func (a *answers) get(ctx context.Context, question string, render func(io.Writer) error) (*answer, error) {
	got, mine := a.find(question)
	if mine {
		turn, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnPatience)
		defer cancel()
		defer a.forget(question, got)
		defer close(got.done)
		a.facts()
		got.render(turn, a.budget, render)
		return got, got.err
	}
	select {
	case <-got.done:
		return got, got.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errBusy, ctx.Err())
	}
}

// find returns the answer to a question, and reports whether the caller must render it.
func (a *answers) find(question string) (got *answer, mine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if got = a.kept[question]; got != nil && (!got.isDone() || time.Since(got.at) < moment) {
		return got, false
	}
	got = &answer{done: make(chan struct{}), err: errUnfinished}
	for other, o := range a.kept {
		if o.isDone() && time.Since(o.at) >= moment {
			delete(a.kept, other)
		}
	}
	if len(a.kept) < maxKept {
		a.kept[question] = got
	}
	if a.old == nil {
		a.old = time.AfterFunc(keptFor, a.clear)
	} else {
		a.old.Reset(keptFor)
	}
	return got, true
}

// forget removes an answer that failed or is too large to keep.
func (a *answers) forget(question string, got *answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if (got.err != nil || len(got.body) > maxKeptSize) && a.kept[question] == got {
		delete(a.kept, question)
	}
}

func (a *answers) clear() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.kept)
}

func (a *answer) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// render waits for a turn, and renders the answer.
func (a *answer) render(ctx context.Context, b *budget, render func(io.Writer) error) {
	end, err := b.begin(ctx)
	if err != nil {
		a.err = err
		return
	}
	defer end()
	a.at = time.Now()
	var body bytes.Buffer
	z, _ := gzip.NewWriterLevel(&body, gzip.BestSpeed) // the level is valid
	a.err = errors.Join(render(z), z.Close())
	a.body = body.Bytes()
}

// writeTo sends the answer to a client. It ignores errors, because the client may be gone.
func (a *answer) writeTo(w http.ResponseWriter, r *http.Request) {
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		_, _ = w.Write(a.body)
		return
	}
	if z, err := gzip.NewReader(bytes.NewReader(a.body)); err == nil && r.Method != http.MethodHead {
		_, _ = io.Copy(w, z)
	}
}

// acceptsGzip reports whether an Accept-Encoding header allows gzip.
func acceptsGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if name = strings.TrimSpace(name); name != "gzip" && name != "*" {
			continue
		}
		weight = strings.TrimPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
		q, err := strconv.ParseFloat(weight, 64)
		return weight == "" || err == nil && q > 0
	}
	return false
}

// A budget limits the processor time for rendering: a fifth of one processor on average, and 2 s in a row. Only one answer is
// rendered at a time, to bound memory.
type budget struct {
	turn chan struct{} // has room for one
	time *rate.Limiter // of microseconds
}

const (
	budgetShare = 200_000   // microseconds a second
	budgetBurst = 2_000_000 // microseconds
)

func newBudget() *budget {
	return &budget{make(chan struct{}, 1), rate.NewLimiter(budgetShare, budgetBurst)}
}

// begin waits for a turn. The caller must call end on the same goroutine. The error wraps errBusy.
func (b *budget) begin(ctx context.Context) (end func(), err error) {
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errBusy, ctx.Err())
	}
	if err := b.time.Wait(ctx); err != nil {
		<-b.turn
		return nil, fmt.Errorf("%w: %w", errBusy, err)
	}
	runtime.LockOSThread()
	began := threadTime()
	return func() {
		took := threadTime() - began
		runtime.UnlockOSThread()
		b.time.ReserveN(time.Now(), min(int(took.Microseconds()), budgetBurst))
		<-b.turn
	}, nil
}

// threadTime returns the processor time of this thread. On a busy host that is far less than the elapsed time.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0 // no kernel lacks that clock
	}
	return time.Duration(t.Nano())
}
