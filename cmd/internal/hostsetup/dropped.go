package hostsetup

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/netutil/conntrack"
)

const (
	// droppedEvery is how often it is looked how many new connections the kernel has dropped.
	droppedEvery = 10 * time.Second

	// droppedKept is how many looks are kept: those of one minute.
	droppedKept = 7

	// leastDropped is how many in that time are a problem: two datagrams that leave one socket at
	// the same moment lose one now and then.
	leastDropped = 10

	// droppedPatience is how long the kernel may take to answer.
	droppedPatience = time.Second
)

// A DropWatch sees that the kernel drops what would begin connections, as they find no free source port.
type DropWatch struct {
	log   *slog.Logger
	total func() (uint64, error) // packets since the network namespace began

	mu   sync.Mutex
	seen []uint64 // totals, oldest first
	told bool     // the log has it, and it goes on
}

// NewDropWatch returns a DropWatch of this network namespace.
func NewDropWatch(log *slog.Logger) *DropWatch { return &DropWatch{log: log, total: Dropped} }

// Dropped returns how many packets the kernel has dropped that would have begun connections.
func Dropped() (uint64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), droppedPatience)
	defer cancel()
	return conntrack.InsertFailed(ctx)
}

// Run looks from time to time until ctx ends.
func (w *DropWatch) Run(ctx context.Context) {
	tick := time.NewTicker(droppedEvery)
	defer tick.Stop()
	for {
		w.sample()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sample keeps what the kernel says now, and logs that connections begin to be dropped.
func (w *DropWatch) sample() {
	total, err := w.total()
	if err != nil {
		return // status and metrics do without
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.lately(total)
	if w.seen = append(w.seen, total); len(w.seen) > droppedKept {
		w.seen = w.seen[1:]
	}
	if n < leastDropped {
		w.told = false
		return
	}
	if !w.told {
		w.log.Warn("new connections are dropped; no source port is free", "packets", n)
	}
	w.told = true
}

// Warnings says that connections are dropped, while they are.
func (w *DropWatch) Warnings() []string {
	total, err := w.total()
	if err != nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.lately(total)
	if n < leastDropped {
		return nil
	}
	return []string{fmt.Sprintf("the kernel dropped %d packets of new connections within a minute, as a rule for want of a free source port "+
		"(insert_failed of conntrack -S): all that is masqueraded to one port of an endpoint shares those of one address; "+
		"add endpoints, or masquerade less (local_cidrs, masquerade)", n)}
}

// lately returns how many packets were dropped since the oldest look. The caller holds w.mu.
func (w *DropWatch) lately(total uint64) uint64 {
	if len(w.seen) == 0 || total < w.seen[0] {
		w.seen = nil // the counters of the kernel have 32 bits
		return 0
	}
	return total - w.seen[0]
}
