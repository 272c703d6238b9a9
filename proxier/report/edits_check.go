package report

import (
	"fmt"
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// CheckEdits returns what differs between two health checks, with whole values. Either may be nil.
func CheckEdits(a, b *source.HealthCheck) (list []Edit) {
	for _, d := range a.Differences(b) {
		e := Edit{What: d.Key, Old: checkText(d.Old), New: checkText(d.New)}
		switch d.Key {
		case "command", "barred": // which says why that one does not run
			e = Edit{What: "command", Old: commandText(a), New: commandText(b)}
		case "all_failed":
			e.Old, e.New = policy.AllFailed(a), policy.AllFailed(b)
		}
		if n := len(list); n == 0 || list[n-1] != e {
			list = append(list, e)
		}
	}
	return list
}

func checkText(v any) string {
	switch v := v.(type) {
	case []source.StatusRange:
		return strings.Join(texts(v, source.StatusRange.String), " ")
	case netip.Addr:
		if !v.IsValid() {
			return ""
		}
	}
	return fmt.Sprint(v)
}

// commandText returns the program and its arguments, and why it does not run.
func commandText(c *source.HealthCheck) string {
	text := fmt.Sprintf("%q", c.Command)
	if c.Barred != "" {
		text += " (does not run: " + c.Barred + ")"
	}
	return text
}
