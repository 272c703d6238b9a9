package control

import (
	"fmt"

	"svcproxy.dev/svcproxy/proxier/conditions"
)

// drains returns the first drain, this host if it is drained, and counts the others; empty: there is none.
func (t *table) drains(s *Summary) string {
	if len(s.Drains) == 0 {
		return ""
	}
	line := "DRAINS  " + grouped(len(s.Drains)+s.Left.Drains) + "  " + t.drained(s.Drains[0])
	if more := len(s.Drains) - 1 + s.Left.Drains; more > 0 {
		line += fmt.Sprintf("; and %s more: svcproxy status -o wide", grouped(more))
	}
	return line
}

// drained says what is drained, by whom, for how long and why, and how long that may last.
func (t *table) drained(d conditions.Drained) string {
	text := because(fmt.Sprintf("%s, by %s for %s", TargetName(d.Target), d.By, age(t.now, d.At)), d.Reason)
	if !d.Until.IsZero() {
		text += ", " + t.left(d.Until)
	}
	return text
}

// because returns a text with a reason behind it, if there is one.
func because(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + reason
}

func (st *Status) drains(t *table) (lines []string) {
	for _, d := range st.Drains {
		lines = append(lines, t.drained(d))
	}
	return lines
}
