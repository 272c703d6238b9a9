package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/source"
)

// Only a host with services of scheduler maglev is told what it needs for them, and in the
// log once.
func TestTakeoverWarnsOfMaglevOnly(t *testing.T) {
	var log strings.Builder
	needy := modes.Mode{TakesUp: []modes.Sysctl{{Name: "kernel/ostype", Value: "another"}}}
	to := &takeover{log: slog.New(slog.NewTextHandler(&log, nil)), mode: func() modes.Mode { return needy }}
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
		to.count(s.ch)
		if got := to.warnings(); len(got) != s.warnings {
			t.Errorf("step %d: %q, want %d warnings", i, got, s.warnings)
		}
	}
	if n := strings.Count(log.String(), "kernel/ostype"); n != 1 {
		t.Errorf("the log has it %d times:\n%s", n, log.String())
	}
}
