package daemon

import (
	"log/slog"
	"math"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/loop"
	"svcproxy.dev/svcproxy/source"
)

// A sink counts what services need of this host, on their way to the Loop.
type sink struct {
	*loop.Loop
	features []*featureWarner
}

func (s sink) Apply(ch source.Changes) {
	for _, f := range s.features {
		f.apply(ch)
	}
	s.Loop.Apply(ch)
}

// newAffinity returns what says where this host forgets clients too early, or has too many lists of them.
func newAffinity(log *slog.Logger, inUse func() modes.Mode) *featureWarner {
	return &featureWarner{log: log, of: configs.AffinityLists, verify: func(lists int) []string {
		return hostsetup.VerifyAffinity(inUse(), lists)
	}}
}

// newTakeover returns what says, once in the log, what keeps this host from taking up connections
// that another host had, for services of scheduler maglev.
func newTakeover(log *slog.Logger, inUse func() modes.Mode) *featureWarner {
	return &featureWarner{log: log, once: true, of: isMaglev, verify: func(services int) []string {
		if services == 0 {
			return nil
		}
		return hostsetup.VerifyTakeover(inUse())
	}}
}

// isMaglev returns 1 for a service with that scheduler.
func isMaglev(s *source.Service) int {
	if s.Scheduler == source.Maglev && !s.Disabled {
		return 1
	}
	return 0
}

// A featureWarner counts which services use a feature, and warns of what this host lacks for so many.
type featureWarner struct {
	log    *slog.Logger
	of     func(*source.Service) int
	verify func(total int) []string
	once   bool // in the log

	mu     sync.Mutex
	units  map[source.UnitID]int // those that have any
	total  int
	warned int // how many warnings there were
}

// warnings returns what is wrong now.
func (w *featureWarner) warnings() []string {
	w.mu.Lock()
	total := w.total
	w.mu.Unlock()
	return w.verify(total)
}

// apply counts changes, and warns when there is more to say than before.
func (w *featureWarner) apply(ch source.Changes) {
	w.count(ch)
	warnings := w.warnings()
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

func (w *featureWarner) count(ch source.Changes) {
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
func (w *featureWarner) set(id source.UnitID, n int) {
	if w.units == nil {
		w.units = make(map[source.UnitID]int)
	}
	w.total += n - w.units[id]
	if w.units[id] = n; n == 0 {
		delete(w.units, id)
	}
}
