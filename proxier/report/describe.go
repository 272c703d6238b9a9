package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
)

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
	parts := texts(editsOf(tr.Old.Differences(tr.New)), Edit.String)
	old, now := tr.Old.Endpoints, tr.New.Endpoints
	ends := describeEndpoints(old, now)
	if len(parts)+len(ends) == 0 && !slices.EqualFunc(old, now, func(a, b source.Endpoint) bool { return endpointName(a) == endpointName(b) }) {
		return Edit{"endpoints", listText(texts(old, endpointName)), listText(texts(now, endpointName))}.String()
	}
	return strings.Join(append(parts, ends...), ", ")
}

// describeEndpoints says which endpoints go, come and change, by their names: of those that have one name, each is
// compared with the one at its place among them.
func describeEndpoints(old, now []source.Endpoint) []string {
	var gone, came, changed []string
	was := make(map[string][]int, len(old)) // places in old that are not compared yet
	for i := range old {
		name := endpointName(old[i])
		was[name] = append(was[name], i)
	}
	for i := range now {
		name := endpointName(now[i])
		if len(was[name]) == 0 {
			came = append(came, word(name))
			continue
		}
		for _, e := range editsOf(old[was[name][0]].Differences(&now[i])) {
			changed = append(changed, word(name)+" "+e.String())
		}
		was[name] = was[name][1:]
	}
	left := slices.Concat(slices.Collect(maps.Values(was))...)
	slices.Sort(left)
	for _, i := range left {
		gone = append(gone, word(endpointName(old[i])))
	}
	parts := appendNamed(nil, "endpoints removed", gone, " ")
	parts = appendNamed(parts, "endpoints added", came, " ")
	return appendNamed(parts, "endpoints changed", changed, ", ")
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
