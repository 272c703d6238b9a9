package daemon

import (
	"log/slog"
	"math"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// A sink counts what services need of this host, on their way to the Loop.
type sink struct {
	*proxier.Loop
	features []*census
}

func (s sink) Apply(ch source.Changes) {
	for _, f := range s.features {
		f.apply(ch)
	}
	s.Loop.Apply(ch)
}

// newAffinity returns what says where this host forgets clients too early, or has too many lists of them.
func newAffinity(log *slog.Logger, inUse func() modes.Mode) *census {
	return &census{log: log, of: configs.AffinityLists, verify: func(lists int) []string {
		return hostsetup.VerifyAffinity(inUse(), lists)
	}}
}

// newTakeover returns what says, once in the log, what keeps this host from taking up connections
// that another host had, for services of scheduler maglev.
func newTakeover(log *slog.Logger, inUse func() modes.Mode) *census {
	return &census{log: log, once: true, of: isMaglev, verify: func(services int) []string {
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

// A census counts something of services, and warns of what this host lacks for so many.
type census struct {
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
func (c *census) warnings() []string {
	c.mu.Lock()
	total := c.total
	c.mu.Unlock()
	return c.verify(total)
}

// apply counts changes, and warns when there is more to say than before.
func (c *census) apply(ch source.Changes) {
	c.count(ch)
	warnings := c.warnings()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(warnings) <= c.warned {
		return
	}
	for _, w := range warnings {
		c.log.Warn(w)
	}
	if c.warned = len(warnings); c.once {
		c.warned = math.MaxInt
	}
}

func (c *census) count(ch source.Changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ch.Delete {
		c.set(id, 0)
	}
	for _, u := range ch.Set {
		n := 0
		for _, svc := range u.Services {
			n += c.of(svc)
		}
		c.set(u.ID, n)
	}
}

// set says how many a unit has. The caller holds c.mu.
func (c *census) set(id source.UnitID, n int) {
	if c.units == nil {
		c.units = make(map[source.UnitID]int)
	}
	c.total += n - c.units[id]
	if c.units[id] = n; n == 0 {
		delete(c.units, id)
	}
}
