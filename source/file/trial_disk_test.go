package file

import (
	"context"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// stalled returns a host with a change that is held, whose disk is busy until release is called.
func stalled(h *host) (release func()) {
	h.guard.Manual = true
	h.write("a.toml", "a 1\n")
	h.start()
	moment()
	h.change(func() { h.write("a.toml", "a 2\n") })
	return h.stall()
}

// A disk that is slower than the time to confirm has nothing applied, for good.
func TestApplySlowDisk(t *testing.T) {
	bubble(t, func(h *host) {
		release := stalled(h)
		time.AfterFunc(6*time.Second, release)
		if _, err := h.src.Apply(context.Background(), time.Second); err == nil || !strings.Contains(err.Error(), "nothing was applied: the state directory took longer") {
			t.Errorf("apply: %v", err)
		}
		moment()
		h.uses("after that", "a 1")
	})
}

// The time to confirm begins when what was held is in use.
func TestApplyTimeBegins(t *testing.T) {
	bubble(t, func(h *host) {
		release := stalled(h)
		time.AfterFunc(6*time.Second, release)
		a := h.apply(10 * time.Second)
		if left := time.Until(a.Until); left < 9*time.Second {
			t.Errorf("%v are left", left)
		}
		pass(8 * time.Second)
		h.uses("8 s later", "a 2")
		pass(2 * time.Second)
		h.uses("10 s later", "a 1")
	})
}

// An apply that ends before anything is let through leaves no trial.
func TestInterruptedApplyLeavesNoTrial(t *testing.T) {
	bubble(t, func(h *host) {
		release := stalled(h)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, func() {
			go func() {
				_ = h.src.inRun(context.Background(), func(source.Sink) error { time.Sleep(time.Second); return nil })
			}()
			time.Sleep(100 * time.Millisecond)
			release()
			time.Sleep(100 * time.Millisecond) // it waits for the goroutine of Run
			cancel()
		})
		if _, err := h.src.Apply(ctx, time.Hour); err == nil || !strings.Contains(err.Error(), "nothing was applied") {
			t.Errorf("apply: %v", err)
		}
		moment()
		h.uses("after that", "a 1")
		if w := h.warnings(); len(w) > 0 {
			t.Errorf("warnings: %q", w)
		}
	})
}
