package file

import (
	"os"
	"testing"
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
