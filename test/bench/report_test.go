//go:build bench

package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// median returns the middle of times, the upper one of two.
func median(times []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(times))[len(times)/2]
}

// show writes a median with the least and the greatest.
func show(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%v (%v to %v, %d runs)", round(median(times)), round(sorted[0]), round(sorted[len(sorted)-1]), len(sorted))
}

// round leaves three digits or so.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

// atLeast holds a ratio of two medians to a promise.
func atLeast(t *testing.T, what string, long, short time.Duration, promise float64) {
	t.Helper()
	hold(t, what, long, short, promise, long.Seconds() >= promise*short.Seconds(), "at least")
}

// atMost holds a ratio of two medians to a promise.
func atMost(t *testing.T, what string, long, short time.Duration, promise float64) {
	t.Helper()
	hold(t, what, long, short, promise, long.Seconds() <= promise*short.Seconds(), "at most")
}

func hold(t *testing.T, what string, a, b time.Duration, promise float64, kept bool, limit string) {
	t.Helper()
	line := fmt.Sprintf("RATIO %s: %v / %v = %.2f, promised %s %v", what, round(a), round(b), a.Seconds()/b.Seconds(), limit, promise)
	switch {
	case kept:
		t.Log(line)
	case quick:
		t.Log(line, "(not kept; a smaller run is not held to it)")
	default:
		t.Error(line)
	}
}

// logMachine says on what the run is, and what else runs there.
func logMachine(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("kernel %s, %d cores, load average %s", unix.ByteSliceToString(name.Release[:]),
		runtime.NumCPU(), strings.TrimSpace(string(load)))
}
