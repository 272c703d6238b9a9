package proxier

import (
	"fmt"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// maxNamed is how many endpoints a log line names before it only counts them.
const maxNamed = 5

func (tr Transition) key() source.Key {
	if tr.New != nil {
		return tr.New.Key
	}
	return tr.Old.Key
}

// describe describes a transition; empty if it changes nothing.
func describe(tr Transition) string {
	switch {
	case tr.Old == nil && tr.New == nil:
		return ""
	case tr.Old == nil:
		return fmt.Sprintf("added, %d endpoints", len(tr.New.Endpoints))
	case tr.New == nil:
		return "removed"
	}
	var parts []string
	if !sameButEndpoints(tr.Old, tr.New) {
		parts = append(parts, "settings")
	}
	gone, came := missing(tr.Old.Endpoints, tr.New.Endpoints), missing(tr.New.Endpoints, tr.Old.Endpoints)
	parts = appendNamed(parts, "endpoints removed", gone)
	parts = appendNamed(parts, "endpoints added", came)
	if len(parts) == 0 && !tr.Old.Equal(tr.New) {
		parts = append(parts, "endpoint settings")
	}
	return strings.Join(parts, ", ")
}

// sameButEndpoints reports whether two services differ at most in their endpoints.
func sameButEndpoints(a, b *source.Service) bool {
	c := *b
	c.Endpoints = a.Endpoints
	return a.Equal(&c)
}

// missing returns the addresses of a that are not in b.
func missing(a, b []source.Endpoint) []string {
	in := make(map[string]bool, len(b))
	for _, e := range b {
		in[endpointName(e)] = true
	}
	var out []string
	for _, e := range a {
		if name := endpointName(e); !in[name] {
			out = append(out, name)
		}
	}
	return out
}

func endpointName(e source.Endpoint) string {
	if len(e.Ports) == 0 {
		return e.Addr.String()
	}
	return fmt.Sprintf("%s%v", e.Addr, e.Ports)
}

func appendNamed(parts []string, what string, names []string) []string {
	switch n := len(names); {
	case n == 0:
		return parts
	case n > maxNamed:
		return append(parts, fmt.Sprintf("%s: %d", what, n))
	}
	return append(parts, fmt.Sprintf("%s: %s", what, strings.Join(names, " ")))
}
