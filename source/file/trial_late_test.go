package file

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// A confirm that comes too late for an apply does not let through what the guard holds.
func TestLateConfirmReleasesNothing(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.many(12)
		h.start()
		moment()
		h.apply(10 * time.Second)
		h.change(h.emptyDir)
		h.has("emptied in a trial", 12, 12)
		pass(20 * time.Second)
		_, err := h.src.Confirm(context.Background())
		if err == nil || !strings.HasPrefix(err.Error(), "the apply of ") || !strings.HasSuffix(err.Error(), "; confirm again to let through what is held") {
			t.Errorf("confirm: %v", err)
		}
		moment()
		h.has("after a late confirm", 12, 12)
		if c := h.confirm(); len(c.Files) != 12 {
			t.Errorf("confirmed again: %+v", c)
		}
		h.has("confirmed again", 0, 0)
	})
}

// A file that was refused before an apply, and is still, is as it was when that goes back.
func TestRefusedFileStaysRefusedAfterATrial(t *testing.T) {
	for _, away := range []time.Duration{0, time.Second, 2 * time.Minute} {
		bubble(t, func(h *host) {
			h.write("a.toml", "a 1\n")
			h.start()
			moment()
			h.change(func() { h.write("b.toml", "a 1\nb 1\n") })
			h.apply(time.Minute)
			if away > 0 {
				h.stop()
				pass(away)
				h.start()
			}
			pass(2 * time.Minute)
			h.uses("gone back", "a 1")
			if h.faults() != "" {
				t.Errorf("faults: %s", h.faults())
			}
			h.change(func() { check(t, os.Remove(h.path("a.toml"))) })
			h.uses("the other is gone", "a 1, b 1")
		})
	}
}

// The end of a trial of an earlier run is in time that no clock moves. A bubble has no such time.
func TestTrialEndIgnoresTheClock(t *testing.T) {
	h := newHost(t)
	h.write("a.toml", "a 1\n")
	h.start()
	h.awaitStates("a.toml accepted 1")
	h.apply(time.Hour)
	h.stop()
	h.start()
	h.awaitStates("a.toml accepted 1")
	h.stop()
	if end := h.src.decisions.trial.Until; end == end.Round(0) {
		t.Errorf("the trial ends at %v, whatever the clock is set to", end)
	}
}
