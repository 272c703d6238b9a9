package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/proxier/report"
)

const (
	// doubtsAfter is how long after a change services are looked through for what
	// nobody can have meant: many changes come together, and nobody waits for the log.
	doubtsAfter = time.Second

	// doubtsPause is the least time between two such looks, which go through all services.
	doubtsPause = 10 * time.Second

	// maxDoubts is how many the log names at a time; status names all.
	maxDoubts = 10
)

// A doubter logs what nobody can have meant.
type doubter struct {
	log  *slog.Logger
	find func() []report.Doubt // as report.Doubts

	doubtful chan struct{} // services or addresses have changed
	deaf     sync.Once     // where processes listen is not known, and the log says so
	known    atomic.Int64  // how many there were at the last look
}

// count returns how many there were at the last look.
func (d *doubter) count() int { return int(d.known.Load()) }

// listening returns where processes of this host listen. That this is not known
// costs warnings only, and is told once.
func (d *doubter) listening() []report.Listener {
	list, err := node.Listeners()
	if err != nil {
		d.deaf.Do(func() {
			d.log.Warn("cannot check for services that take ports of local processes", "err", err)
		})
	}
	return list
}

// doubt has services looked through: they, or the addresses of this host, have changed.
func (d *doubter) doubt() { wake.Once(d.doubtful) }

// run logs new doubts about services after each change, until ctx ends.
func (d *doubter) run(ctx context.Context) {
	told := map[report.Doubt]bool{}
	wait := func(t time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(t):
			return true
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.doubtful:
		}
		if !wait(doubtsAfter) {
			return
		}
		now := d.find()
		d.known.Store(int64(len(now)))
		news := slices.DeleteFunc(slices.Clone(now), func(n report.Doubt) bool { return told[n] })
		for i, n := range news[:min(len(news), maxDoubts+1)] {
			if i == maxDoubts {
				d.log.Warn("more such warnings are in svcproxy status", "warnings", len(news)-i)
			} else {
				d.log.Warn(n.Fault().String())
			}
		}
		clear(told)
		for _, n := range now {
			told[n] = true
		}
		if !wait(doubtsPause) {
			return
		}
	}
}
