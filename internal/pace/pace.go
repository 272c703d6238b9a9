// Package pace lengthens what tests wait for by how busy the machine is.
package pace

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Work is what is computed to see how busy the machine is: some ten milliseconds
// of an idle processor of a server, which is what others are compared with.
const (
	workRounds = 1 << 22
	workTime   = 10 * time.Millisecond
	fresh      = time.Second // how long a result is used
	fall       = 0.8         // of a result that a lower one follows: a short sample may be lucky
	most       = 20          // of a result: a sample may wait for hundreds of goroutines of the test itself

	pollInterval  = 5 * time.Millisecond
	untilPatience = 30 * time.Second
)

var last struct {
	sync.Mutex
	taken time.Time
	load  float64
}

// Scale returns what d on an idle machine is on this one now: d times Load.
func Scale(d time.Duration) time.Duration { return time.Duration(float64(d) * Load()) }

// Load returns how many times as long as on an idle machine it takes to compute
// something just now: 1 to 20, and some 3 beside two busy processes on each processor.
func Load() float64 {
	last.Lock()
	defer last.Unlock()
	if last.taken.IsZero() || time.Since(last.taken) > fresh {
		last.load, last.taken = min(most, max(1, measure(), last.load*fall)), time.Now()
	}
	return last.load
}

// Over reports whether d has passed since start, with d lengthened as by Scale. It
// measures only when d itself has passed.
func Over(start time.Time, d time.Duration) bool {
	took := time.Since(start)
	return took > d && took > Scale(d)
}

// Within reports whether ok returns true within d, lengthened as by Scale. It calls ok every 5 ms.
func Within(d time.Duration, ok func() bool) bool {
	for start := time.Now(); !ok(); time.Sleep(pollInterval) {
		if Over(start, d) {
			return false
		}
	}
	return true
}

// Poll calls check as Within does, until it returns nil, and returns its last error once patience is over.
func Poll(patience time.Duration, check func() error) (err error) {
	Within(patience, func() bool { err = check(); return err == nil })
	return err
}

// Until fails the test unless ok returns true within 30 s, lengthened as by Scale. It calls ok every 5 ms.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	UntilOr(t, ok, func() string { return what })
}

// UntilOr is Until with a text for the failure that is made when time is over.
func UntilOr(t testing.TB, ok func() bool, why func() string) {
	t.Helper()
	if start := time.Now(); !Within(untilPatience, ok) {
		t.Fatalf("not after %v: %s", time.Since(start), why())
	}
}

// Context returns a context that ends after d, lengthened as by Scale, or up to a quarter of d later. It measures only
// when d itself has passed.
func Context(d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for start := time.Now(); !Over(start, d); {
			select {
			case <-ctx.Done():
				return
			case <-time.After(d / 4):
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}

func measure() float64 {
	start := time.Now()
	runtime.KeepAlive(work()) // so that the work is not left out
	return float64(time.Since(start)) / float64(workTime)
}

func work() uint64 {
	x := uint64(1)
	for range workRounds {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}
