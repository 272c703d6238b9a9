package daemon

import (
	"context"
	"os"
	"runtime/debug"
)

// steadyGC is how much garbage may gather once everything is loaded, in percent
// of what is in use. Go's default, 100, makes the first load faster. After that
// there is little garbage but that of resyncs, each nearly as much as is in use:
// with 25 they take three collections instead of one, of some 20 ms of one
// processor for 100,000 endpoints, and the host has a third of the memory back.
const steadyGC = 25

// saveMemory gives back what the first load took and does not need any more.
// GOGC in the environment has the last word.
func (d *daemon) saveMemory(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-d.loop.Ready():
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(steadyGC)
	}
	debug.FreeOSMemory()
}
