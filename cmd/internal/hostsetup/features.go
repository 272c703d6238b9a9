package hostsetup

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/conntrack"
	"svcproxy.dev/svcproxy/source"
)

// NewAffinity returns what says where this host forgets clients too early, or has too many lists of them.
func NewAffinity(log *slog.Logger, inUse func() modes.Mode) *FeatureWarner {
	return &FeatureWarner{log: log, of: configs.AffinityLists, verify: func(lists int) []string {
		return VerifyAffinity(inUse(), lists)
	}}
}

// NewTakeover returns what says, once in the log, what keeps this host from taking up connections
// that another host had, for services of scheduler maglev.
func NewTakeover(log *slog.Logger, inUse func() modes.Mode) *FeatureWarner {
	return &FeatureWarner{log: log, once: true, of: func(s *source.Service) int {
		if s.Scheduler == source.Maglev && !s.Disabled {
			return 1
		}
		return 0
	}, verify: func(services int) []string {
		if services == 0 {
			return nil
		}
		return VerifyTakeover(inUse())
	}}
}

// A FeatureWarner counts which services use a feature, and warns of what this host lacks for so many.
type FeatureWarner struct {
	log    *slog.Logger
	of     func(*source.Service) int
	verify func(total int) []string
	once   bool // in the log

	mu     sync.Mutex
	units  map[source.UnitID]int // those that have any
	total  int
	warned int // how many warnings there were
}

// Warnings returns what is wrong now.
func (w *FeatureWarner) Warnings() []string {
	w.mu.Lock()
	total := w.total
	w.mu.Unlock()
	return w.verify(total)
}

// Apply counts changes, and warns when there is more to say than before.
func (w *FeatureWarner) Apply(ch source.Changes) {
	w.mu.Lock()
	for _, id := range ch.Delete {
		w.set(id, 0)
	}
	for _, u := range ch.Set {
		n := 0
		for _, svc := range u.Services {
			n += w.of(svc)
		}
		w.set(u.ID, n)
	}
	w.mu.Unlock()
	warnings := w.Warnings()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(warnings) <= w.warned {
		return
	}
	for _, text := range warnings {
		w.log.Warn(text)
	}
	if w.warned = len(warnings); w.once {
		w.warned = math.MaxInt
	}
}

// set says how many a unit has. The caller holds w.mu.
func (w *FeatureWarner) set(id source.UnitID, n int) {
	if w.units == nil {
		w.units = make(map[source.UnitID]int)
	}
	w.total += n - w.units[id]
	if w.units[id] = n; n == 0 {
		delete(w.units, id)
	}
}

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
	if n >= leastDropped && !w.told {
		w.log.Warn("new connections are dropped; no source port is free", "packets", n)
	}
	w.told = n >= leastDropped
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
