package daemon

import (
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// Lists are counted by unit, whatever becomes of it.
func TestCountLists(t *testing.T) {
	unit := func(name string, endpoints int) source.Unit {
		sticky := &source.Service{Affinity: time.Minute, Ports: make([]source.Port, 2), Endpoints: make([]source.Endpoint, endpoints)}
		return source.Unit{ID: source.UnitID{Name: name}, Services: []*source.Service{sticky, {Ports: sticky.Ports, Endpoints: sticky.Endpoints}}}
	}
	var l lists
	for i, step := range []struct {
		ch   source.Changes
		want int
	}{
		{source.Changes{Set: []source.Unit{unit("a", 3), unit("b", 4)}}, 14},
		{source.Changes{Set: []source.Unit{unit("a", 1)}}, 10},
		{source.Changes{Delete: []source.UnitID{{Name: "b"}, {Name: "c"}}}, 2},
		{source.Changes{Set: []source.Unit{unit("a", 0)}}, 0},
	} {
		if l.apply(step.ch); l.total != step.want {
			t.Errorf("step %d: %d lists, want %d", i, l.total, step.want)
		}
	}
	if len(l.of) != 0 {
		t.Errorf("units without lists are still there: %v", l.of)
	}
}
