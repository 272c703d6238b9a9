package control

import (
	"fmt"
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
)

// drains returns the first drain, this host if it is drained, and counts the others; empty: there is none.
func (t *table) drains(s *Summary) string {
	if len(s.Drains) == 0 {
		return ""
	}
	line := "DRAINS  " + Grouped(len(s.Drains)+s.Left.Drains) + "  " + DrainText(t.now, s.Drains[0])
	if more := len(s.Drains) - 1 + s.Left.Drains; more > 0 {
		line += fmt.Sprintf("; and %s more: svcproxy status -o wide", Grouped(more))
	}
	return line
}

// DrainText says what is drained, by whom, for how long and why, and how long that may last.
func DrainText(now time.Time, d conditions.Drained) string {
	text := because(fmt.Sprintf("%s, by %s for %s", TargetName(d.Target), d.By, Age(now, d.At)), d.Reason)
	if !d.Until.IsZero() {
		text += ", " + left(now, d.Until)
	}
	return text
}

func (st *Status) drains(now time.Time) (lines []string) {
	for _, d := range st.Drains {
		lines = append(lines, DrainText(now, d))
	}
	return lines
}

func left(now, until time.Time) string {
	if d := until.Sub(now).Truncate(time.Second); d > 0 {
		return d.String() + " left"
	}
	return "time is over"
}

// TargetName returns what is drained as people call it.
func TargetName(t conditions.DrainTarget) string {
	if t.Node {
		return "this host"
	}
	return t.String()
}
