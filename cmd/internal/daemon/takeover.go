package daemon

import (
	"log/slog"
	"sync"

	"svcproxy.dev/svcproxy/cmd/internal/hostsetup"
	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/source"
)

// A takeover says what keeps this host from taking up connections that another host had, for
// services of scheduler maglev.
type takeover struct {
	log  *slog.Logger
	mode func() modes.Mode // in use

	mu     sync.Mutex
	users  map[source.UnitID]int // services with that scheduler, of units that have any
	warned bool
}

// warnings returns nothing where no service has the scheduler.
func (t *takeover) warnings() []string {
	t.mu.Lock()
	used := len(t.users) > 0
	t.mu.Unlock()
	if !used {
		return nil
	}
	return hostsetup.VerifyTakeover(t.mode())
}

// count notes which services have the scheduler, and warns once.
func (t *takeover) count(ch source.Changes) {
	t.mu.Lock()
	t.apply(ch)
	t.mu.Unlock()
	warnings := t.warnings()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.warned || len(warnings) == 0 {
		return
	}
	t.warned = true
	for _, w := range warnings {
		t.log.Warn(w)
	}
}

func (t *takeover) apply(ch source.Changes) {
	if t.users == nil {
		t.users = map[source.UnitID]int{}
	}
	for _, id := range ch.Delete {
		delete(t.users, id)
	}
	for _, u := range ch.Set {
		delete(t.users, u.ID)
		for _, svc := range u.Services {
			if svc.Scheduler == source.Maglev && !svc.Disabled {
				t.users[u.ID]++
			}
		}
	}
}
