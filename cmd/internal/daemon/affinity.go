package daemon

import (
	"svcproxy/cmd/internal/hostsetup"
	"svcproxy/configs"
	"svcproxy/proxier"
	"svcproxy/source"
)

// A sink counts what session affinity needs on its way to the Loop.
type sink struct {
	*proxier.Loop
	d *daemon
}

func (s sink) Apply(ch source.Changes) {
	s.d.countLists(ch)
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

// countLists warns where this host forgets clients too early, or has too many
// lists of them, when there is something new to say.
func (d *daemon) countLists(ch source.Changes) {
	d.mu.Lock()
	d.lists.apply(ch)
	total, mode := d.lists.total, d.kernel.Mode
	d.mu.Unlock()
	warnings := hostsetup.VerifyAffinity(mode, total)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(warnings) > d.lists.warned {
		for _, w := range warnings {
			d.log.Warn(w)
		}
	}
	d.lists.warned = max(d.lists.warned, len(warnings))
}
