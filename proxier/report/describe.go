package report

import (
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/proxier/claims"
)

// maxNamed is how many endpoints, or changes of them, a log line names before it only
// counts them.
const maxNamed = 5

// Describe describes a transition; empty if it changes nothing.
func Describe(tr claims.Transition) string {
	switch {
	case tr.Old == nil && tr.New == nil:
		return ""
	case tr.Old == nil:
		return fmt.Sprintf("added, %d endpoints", len(tr.New.Endpoints))
	case tr.New == nil:
		return "removed"
	}
	var parts, gone, came, changed []string
	for _, e := range EditsOf(tr) {
		switch {
		case e.Endpoint == "":
			parts = append(parts, e.String())
		case e.What != "":
			changed = append(changed, e.String())
		case e.New == "":
			gone = append(gone, e.Endpoint)
		default:
			came = append(came, e.Endpoint)
		}
	}
	parts = appendNamed(parts, "endpoints removed", gone, " ")
	parts = appendNamed(parts, "endpoints added", came, " ")
	parts = appendNamed(parts, "endpoints changed", changed, ", ")
	return strings.Join(parts, ", ")
}

func appendNamed(parts []string, what string, names []string, separator string) []string {
	switch n := len(names); {
	case n == 0:
		return parts
	case n > maxNamed:
		return append(parts, fmt.Sprintf("%s: %d", what, n))
	}
	return append(parts, fmt.Sprintf("%s: %s", what, strings.Join(names, separator)))
}
