package file

import (
	"os"
	"strings"
	"testing"
)

// A change is held, and the copy of what it would remove is damaged.
func TestGuardCopyDamaged(t *testing.T) {
	for _, tt := range []struct {
		name           string
		damage         func(h *host)
		services, held int
		log            string
	}{
		{"by itself", func(h *host) {
			path := h.lastCopy("a.toml")
			check(h.T, os.Remove(path))
			write(h.T, path, "a 7\n")
		}, 12, 1, "the same text in the history is used"},
		{"and that in the history", func(h *host) { h.damage("a.toml") }, 2, 0, "no older one is kept, so none of its services are used"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			guarded(t, Guard{Removals: 30}, func(h *host) {
				h.write("a.toml", services(12, 1))
				h.start()
				moment()
				h.change(func() { h.write("a.toml", services(2, 1)) })
				h.has("held", 12, 1)
				h.stop()
				tt.damage(h)
				h.start()
				moment()
				h.has("after a restart", tt.services, tt.held)
				if got := h.log.String(); !strings.Contains(got, tt.log) {
					t.Errorf("no %q in the log:\n%s", tt.log, got)
				}
				if got := h.faults(); strings.Contains(got, "is held") != (tt.held > 0) {
					t.Errorf("faults: %s", got)
				}
			})
		})
	}
}

// An older version is used where the copy of the last good one is damaged, and status says so until the file is good.
func TestOlderVersionOfHistory(t *testing.T) {
	guarded(t, Guard{}, func(h *host) {
		h.write("a.toml", "a 3\n")
		h.start()
		moment()
		h.change(func() { h.write("a.toml", "a 4\n") })
		h.stop()
		h.damage("a.toml")
		h.write("a.toml", "bad\n")
		h.start()
		moment()
		if now, _ := h.sink.look(); now != "a 3" {
			t.Errorf("in use: %s", now)
		}
		const says = "the copy of the last good version cannot be used: its checksum is not the recorded one; version 1 of the history is used"
		if got := h.faults(); !strings.Contains(got, says) {
			t.Errorf("faults: %s", got)
		}
		h.change(func() { h.write("a.toml", "a 5\n") })
		if got := h.faults(); got != "" {
			t.Errorf("faults of a good file: %s", got)
		}
	})
}

// What was removed before the version that is lost does not come back from the history.
func TestRemovedVersionStaysRemoved(t *testing.T) {
	guarded(t, Guard{}, func(h *host) {
		h.write("a.toml", "a 3\n")
		h.start()
		moment()
		h.change(func() { check(h.T, os.Remove(h.path("a.toml"))) })
		h.change(func() { h.write("a.toml", "a 4\n") })
		h.stop()
		h.damage("a.toml")
		h.write("a.toml", "bad\n")
		h.start()
		moment()
		if now, _ := h.sink.look(); now != "" {
			t.Errorf("in use: %s", now)
		}
		if got := h.faults(); !strings.Contains(got, "no older one is kept") {
			t.Errorf("faults: %s", got)
		}
	})
}

// A list of endpoints is a file of its own in the history too, and is used from there.
func TestListFromHistory(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(3))
		h.start()
		moment()
		h.stop()
		r, _ := h.src.store.Find("web.endpoints.json")
		check(h.T, os.Remove(h.lastCopy("web.endpoints.json")))
		h.write("web.endpoints.json", "[")
		h.start()
		moment()
		h.use("restart", "web 3")
		if got := h.log.String(); !strings.Contains(got, "the same text in the history is used") {
			t.Errorf("the log says nothing of the history:\n%s", got)
		}
		h.stop()
		if _, err := h.src.store.Read("web.endpoints.json", r); err != nil {
			t.Errorf("the copy is not written again: %v", err)
		}
	})
}
