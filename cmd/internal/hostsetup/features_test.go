package hostsetup

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/source"
)

// Lists are counted by unit, whatever becomes of it.
func TestListsAreCountedByUnit(t *testing.T) {
	unit := func(name string, endpoints int) source.Unit {
		sticky := &source.Service{Affinity: time.Minute, Ports: make([]source.Port, 2), Endpoints: make([]source.Endpoint, endpoints)}
		return source.Unit{ID: source.UnitID{Name: name}, Services: []*source.Service{sticky, {Ports: sticky.Ports, Endpoints: sticky.Endpoints}}}
	}
	c := NewAffinity(slog.New(slog.DiscardHandler), func() modes.Mode { return modes.Mode{} })
	for i, step := range []struct {
		ch   source.Changes
		want int
	}{
		{source.Changes{Set: []source.Unit{unit("a", 3), unit("b", 4)}}, 14},
		{source.Changes{Set: []source.Unit{unit("a", 1)}}, 10},
		{source.Changes{Delete: []source.UnitID{{Name: "b"}, {Name: "c"}}}, 2},
		{source.Changes{Set: []source.Unit{unit("a", 0)}}, 0},
	} {
		if c.Apply(step.ch); c.total != step.want {
			t.Errorf("step %d: %d lists, want %d", i, c.total, step.want)
		}
	}
	if len(c.units) != 0 {
		t.Errorf("units without lists are still there: %v", c.units)
	}
}

// Only a host with services of scheduler maglev is told what it needs for them, and in the
// log once.
func TestTakeoverWarnsOfMaglevOnly(t *testing.T) {
	var log strings.Builder
	needy := modes.Mode{TakesUp: []modes.Sysctl{{Name: "kernel/ostype", Value: "another"}}}
	to := NewTakeover(slog.New(slog.NewTextHandler(&log, nil)), func() modes.Mode { return needy })
	unit := func(scheduler string) source.Unit {
		return source.Unit{ID: source.UnitID{Name: "a.toml"}, Services: []*source.Service{{Scheduler: scheduler}}}
	}
	steps := []struct {
		ch       source.Changes
		warnings int
	}{
		{source.Changes{Set: []source.Unit{unit("")}}, 0},
		{source.Changes{Set: []source.Unit{unit(source.Maglev)}}, 1},
		{source.Changes{Set: []source.Unit{unit("rr")}}, 0},
		{source.Changes{Set: []source.Unit{unit(source.Maglev)}}, 1},
		{source.Changes{Delete: []source.UnitID{unit("").ID}}, 0},
	}
	for i, s := range steps {
		to.Apply(s.ch)
		if got := to.Warnings(); len(got) != s.warnings {
			t.Errorf("step %d: %q, want %d warnings", i, got, s.warnings)
		}
	}
	if n := strings.Count(log.String(), "kernel/ostype"); n != 1 {
		t.Errorf("the log has it %d times:\n%s", n, log.String())
	}
}
