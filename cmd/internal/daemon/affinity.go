package daemon

import (
	"log/slog"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// A sink counts what session affinity needs on its way to the Loop.
type sink struct {
	*proxier.Loop
	affinity *affinity
	takeover *takeover
}

func (s sink) Apply(ch source.Changes) {
	s.affinity.count(ch)
	s.takeover.count(ch)
	s.Loop.Apply(ch)
}

// lists counts the lists of clients that iptables mode needs, by unit.
type lists struct {
	of     map[source.UnitID]int
	total  int
	warned int // how many warnings there were
}

func (l *lists) apply(ch source.Changes) {
	if l.of == nil {
		l.of = make(map[source.UnitID]int)
	}
	for _, id := range ch.Delete {
		l.total -= l.of[id]
		delete(l.of, id)
	}
	for _, u := range ch.Set {
		l.total -= l.of[u.ID]
		delete(l.of, u.ID)
		n := 0
		for _, svc := range u.Services {
			n += configs.AffinityLists(svc)
		}
		if n > 0 {
			l.of[u.ID] = n
			l.total += n
		}
	}
}

// An affinity says what session affinity costs this host.
type affinity struct {
	log  *slog.Logger
	mode func() modes.Mode // in use

	mu    sync.Mutex
	lists lists
}

// warnings says where this host forgets clients too early, or has too many lists of them.
func (a *affinity) warnings() []string {
	a.mu.Lock()
	total := a.lists.total
	a.mu.Unlock()
	return hostsetup.VerifyAffinity(a.mode(), total)
}

// count warns where this host forgets clients too early, or has too many
// lists of them, when there is something new to say.
func (a *affinity) count(ch source.Changes) {
	a.mu.Lock()
	a.lists.apply(ch)
	a.mu.Unlock()
	warnings := a.warnings()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(warnings) > a.lists.warned {
		for _, w := range warnings {
			a.log.Warn(w)
		}
	}
	a.lists.warned = max(a.lists.warned, len(warnings))
}
