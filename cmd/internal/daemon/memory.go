package daemon

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// loadingGC is how much garbage may gather during the first load, in percent of what is in use. With Go's default, 100, the
// heap grows to twice what the first load uses. With 50, a first load of 100,000 services of 10 endpoints has a seventh less
// memory at the peak (604 MiB), and takes a tenth to a sixth more of the processor.
const loadingGC = 50

// steadyGC is how much garbage may gather once everything is loaded, in percent
// of what is in use. After that there is little garbage but that of resyncs, each nearly as much as is in use:
// with 25 they take three collections instead of one, of some 20 ms of one
// processor for 100,000 endpoints, and the host has a third of the memory back.
const steadyGC = 25

// Memory is given back once a minute at most, and only when as much has been allocated since as
// makes Go collect garbage anyway. Go by itself keeps a tenth more than it last needed.
const (
	giveBackEvery = time.Minute
	giveBackFrom  = 8 << 20 // bytes, where steadyGC is less

	// settledAfter is how long after the first load, as a rule, all files have their last good copies, whose texts
	// are not needed any more. They are few allocations, so Go would not collect garbage for them.
	settledAfter = 30 * time.Second
)

// saveMemory gives back what the first load took and does not need any more, and what large
// changes did later. GOGC in the environment has the last word on how much garbage may gather.
func saveMemory(ctx context.Context, loaded <-chan struct{}) {
	collectAt(loadingGC)
	select {
	case <-ctx.Done():
		return
	case <-loaded:
	}
	collectAt(steadyGC)
	debug.FreeOSMemory()
	select {
	case <-ctx.Done():
		return
	case <-time.After(settledAfter):
	}
	tick := time.NewTicker(giveBackEvery)
	defer tick.Stop()
	// Bytes that were allocated since the process began, and that were in use when garbage was last collected.
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	for given := uint64(0); ; {
		metrics.Read(samples)
		if now, live := samples[0].Value.Uint64(), samples[1].Value.Uint64(); now-given >= max(giveBackFrom, live*steadyGC/100) {
			debug.FreeOSMemory()
			given = now
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collectAt has garbage collected once there is as much, in percent of what is in use; GOGC overrides it.
func collectAt(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
