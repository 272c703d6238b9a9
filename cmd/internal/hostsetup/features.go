package hostsetup

import (
	"log/slog"
	"math"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
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
	return &FeatureWarner{log: log, once: true, of: isMaglev, verify: func(services int) []string {
		if services == 0 {
			return nil
		}
		return VerifyTakeover(inUse())
	}}
}

// isMaglev returns 1 for a service with that scheduler.
func isMaglev(s *source.Service) int {
	if s.Scheduler == source.Maglev && !s.Disabled {
		return 1
	}
	return 0
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
	w.count(ch)
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

func (w *FeatureWarner) count(ch source.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
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
