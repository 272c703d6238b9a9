package control

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
)

// endpoints writes a row for each endpoint of services; named: behind the name of its service.
// Since when and why it is so has columns where one of them has more to tell than its file does.
func (t *table) endpoints(services []report.ServiceStatus, named bool) {
	head := []string{"ENDPOINT", "STATE", "WEIGHT", "WHERE"}
	more := slices.ContainsFunc(services, func(s report.ServiceStatus) bool { return slices.ContainsFunc(s.Endpoints, observed) })
	counted := slices.ContainsFunc(services, func(s report.ServiceStatus) bool { return s.Traffic != nil })
	if counted {
		head = append(head, "ACTIVE")
	}
	if more {
		head = append(head, "SINCE", "WHY")
	}
	if named {
		head = slices.Insert(head, 0, "SERVICE")
	}
	t.row(head...)
	for _, s := range services {
		for _, e := range s.Endpoints {
			cells := endpoint(t.now, e, counted, more)
			if named {
				cells = slices.Insert(cells, 0, s.Key().String())
			}
			t.row(cells...)
		}
	}
}

// observed reports whether more is known of an endpoint than its file says.
func observed(e report.EndpointStatus) bool {
	return e.Check != nil || e.Drain != nil || e.Tier > 0 || e.Share > 0 || e.MaxConnections > 0
}

// endpoint returns the cells of a row.
func endpoint(now time.Time, e report.EndpointStatus, counted, more bool) []string {
	where := "remote"
	if e.Local {
		where = "local"
	}
	cells := []string{e.Address, StateWord(e), strconv.Itoa(int(e.Weight)), where}
	if counted {
		cells = append(cells, active(e))
	}
	if more {
		cells = append(cells, Since(now, e), Why(now, e))
	}
	return cells
}

// active returns how many connections an endpoint has.
func active(e report.EndpointStatus) string {
	if e.Active == nil {
		return "-"
	}
	return Grouped(int(*e.Active))
}

// StateWord returns the state as people read it.
func StateWord(e report.EndpointStatus) string {
	switch e.State {
	case "down":
		return "DOWN"
	case "slow start":
		return fmt.Sprintf("slow-start %d%%", e.Share)
	}
	return e.State
}

// Since returns for how long the state has been so, and of a drain for how long it may last.
func Since(now time.Time, e report.EndpointStatus) string {
	text := Age(now, e.Since)
	if e.Drain != nil && !e.Drain.Until.IsZero() {
		text += ", " + left(now, e.Drain.Until)
	}
	return text
}

// Why returns who drains an endpoint, its tier, how many connections it gets at most, and what its
// check last answered.
func Why(now time.Time, e report.EndpointStatus) string {
	var parts []string
	if d := e.Drain; d != nil {
		parts = append(parts, because("drained by "+d.By, d.Reason))
	}
	if e.Tier > 0 {
		parts = append(parts, fmt.Sprintf("tier %d", e.Tier))
	}
	if e.MaxConnections > 0 {
		parts = append(parts, "at most "+Grouped(int(e.MaxConnections))+" connections")
	}
	if e.Check != nil {
		parts = append(parts, lastAnswer(now, e.Check))
	}
	return cmp.Or(strings.Join(parts, "; "), "-")
}

// lastAnswer returns what a check last answered: "tcp 0.3 ms", "tcp: connection refused, 2s ago".
func lastAnswer(now time.Time, c *report.CheckStatus) string {
	switch {
	case c.Asked.IsZero():
		return c.Type + ": not asked yet"
	case c.Error != "":
		return fmt.Sprintf("%s: %s, %s ago", c.Type, c.Error, Age(now, c.Asked))
	}
	return c.Type + " " + millis(c.Took)
}

// millis returns a time in ms, with a digit behind the point where it is short.
func millis(d time.Duration) string {
	digits := 0
	if d < 10*time.Millisecond {
		digits = 1
	}
	return strconv.FormatFloat(d.Seconds()*1000, 'f', digits, 64) + " ms"
}
