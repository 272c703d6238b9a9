package pace

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
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
