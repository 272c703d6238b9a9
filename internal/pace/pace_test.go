package pace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The same work takes at least twice as long beside busy threads.
func TestLoadRisesWithBusyThreads(t *testing.T) {
	const each = 6 // busy threads for each processor
	quiet := measure()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS((each + 2) * runtime.NumCPU()))
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range each * runtime.NumCPU() {
		wg.Go(func() {
			for !stop.Load() {
			}
		})
	}
	busy := 0.0
	for start := time.Now(); busy < 2*quiet && time.Since(start) < time.Minute; { // the threads have to begin
		busy = measure()
	}
	stop.Store(true)
	wg.Wait()
	if busy < 2*quiet {
		t.Errorf("%.1f beside %d busy threads for each processor, %.1f without", busy, each, quiet)
	}
}

func TestOverScalesWithLoad(t *testing.T) {
	defer func() { last.taken = time.Time{} }()
	last.load, last.taken = 3, time.Now().Add(time.Hour)
	if got := Scale(time.Second); got != 3*time.Second {
		t.Errorf("a second is %v", got)
	}
	for _, tt := range []struct {
		ago  time.Duration
		want bool
	}{{10 * time.Second, false}, {29 * time.Second, false}, {31 * time.Second, true}} {
		if got := Over(time.Now().Add(-tt.ago), 10*time.Second); got != tt.want {
			t.Errorf("10 s over after %v: %v", tt.ago, got)
		}
	}
}

// Load stays within its bound, however long a sample takes.
func TestLoadIsBounded(t *testing.T) {
	defer func() { last.load, last.taken = 0, time.Time{} }()
	last.load, last.taken = 1000, time.Now().Add(-2*fresh)
	if got := Load(); got != most {
		t.Errorf("after a sample of 1000: %v, want %v", got, float64(most))
	}
}

// What does not come true in time fails with a text of that moment, and Poll with the last error.
func TestFailuresTellTheLastState(t *testing.T) {
	defer func() { last.load, last.taken = 0, time.Time{} }()
	last.load, last.taken = 2, time.Now().Add(time.Hour)
	n := 0
	again := func() bool { n++; return false }
	start := time.Now()
	if Within(10*time.Millisecond, again) || n < 2 || time.Since(start) < 20*time.Millisecond {
		t.Errorf("asked %d times in %v", n, time.Since(start))
	}
	err := Poll(10*time.Millisecond, func() error { n++; return fmt.Errorf("%d times", n) })
	if want := fmt.Sprintf("%d times", n); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := Poll(time.Minute, func() error { return nil }); err != nil {
		t.Error(err)
	}
	f := &failing{TB: t}
	synctest.Test(t, func(t *testing.T) { UntilOr(f, again, func() string { return fmt.Sprint(n) }) })
	if want := fmt.Sprint(": ", n); !strings.HasSuffix(f.text, want) {
		t.Errorf("failed with %q, want %q at the end", f.text, want)
	}
}

// A failing is a test that keeps what it fails with.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper()                           {}
func (f *failing) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func TestContextEnds(t *testing.T) {
	defer func() { last.load, last.taken = 0, time.Time{} }()
	last.load, last.taken = 2, time.Now().Add(time.Hour)
	start := time.Now()
	ctx, cancel := Context(20 * time.Millisecond)
	<-ctx.Done()
	if took := time.Since(start); took < 40*time.Millisecond || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		t.Errorf("%v after %v", context.Cause(ctx), took)
	}
	cancel()
	ctx, cancel = Context(time.Hour)
	cancel()
	if <-ctx.Done(); !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Error(context.Cause(ctx))
	}
}
