package file

import (
	"context"
	"os"
	"testing"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// What a process still writes counts as it was looked at before, when it is looked at
// again. Stamps are in the kernel's time, so this is in no bubble.
func TestGuardHeldOpen(t *testing.T) {
	h := newHost(t)
	h.guard = Guard{Removals: 50}
	h.write("a.toml", services(12, 12))
	h.start()
	h.awaitStates("a.toml accepted 12")
	f, err := os.OpenFile(h.path("a.toml"), os.O_WRONLY|os.O_TRUNC, 0)
	check(t, err)
	defer f.Close()
	_, err = f.WriteString(services(11, 12))
	check(t, err)
	h.awaitStates("a.toml accepted 11") // after maxWait, for it is never closed
	h.stop()
}

// A newer version that is still being written when the held one is let through counts later.
func TestConfirmWhileWritten(t *testing.T) {
	h := newHost(t)
	h.guard = Guard{Manual: true}
	h.write("a.toml", "a 5\n")
	h.start()
	h.awaitStates("a.toml accepted 1")
	h.write("a.toml", "a 4\nb 1\n")
	h.awaitStates("a.toml held 1")
	f, err := os.OpenFile(h.path("a.toml"), os.O_WRONLY|os.O_TRUNC, 0)
	check(t, err)
	_, err = f.WriteString("a 2\n")
	check(t, err)
	h.awaitWaiting("a.toml")
	_, err = h.src.Confirm(context.Background())
	check(t, err)
	h.awaitStates("a.toml accepted 2")
	check(t, f.Close())
	h.awaitStates("a.toml held 2")
	h.stop()
}

// awaitWaiting waits until a version of the file waits.
func (h *host) awaitWaiting(name string) {
	h.Helper()
	pace.Until(h, "a version of "+name+" waits", func() (waits bool) {
		check(h.T, h.src.inRun(context.Background(), func(source.Sink) error {
			h.src.todo.names[name] = true
			f := h.src.waiting[name]
			waits = f != nil && !f.racy // it is not read again
			return nil
		}))
		return waits
	})
}

// What a version would remove that is refused, for another file has what it claims, counts once.
func TestGuardRefusedCountsOnce(t *testing.T) {
	guarded(t, Guard{Removals: 30}, func(h *host) {
		h.write("a.toml", services(20, 10))
		h.write("x.toml", "x 1\n")
		h.start()
		moment()
		for i := range 3 {
			h.change(func() { h.write("a.toml", services(16, 9-i/2)+"x 1\n") })
			h.has("refused", 21, 0)
		}
	})
}
