package control

import (
	"net/url"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Selection says which services are meant.
type Selection = source.Selection

// Missing says which patterns of a selection mean none of some services; empty: each means some.
func Missing(which Selection, list []report.ServiceStatus) string {
	lost := slices.DeleteFunc(slices.Clone(which), func(pattern string) bool {
		one := Selection{pattern}
		return slices.ContainsFunc(list, func(s report.ServiceStatus) bool {
			return one.Matches(source.Key{Namespace: s.Namespace, Name: s.Name}, s.Labels)
		})
	})
	if len(lost) == 0 {
		return ""
	}
	return "no service is " + strings.Join(lost, ", or ")
}

// queryOf returns a Selection as SelectionOf reads it.
func queryOf(s Selection) url.Values {
	if len(s) == 0 {
		return nil
	}
	return url.Values{"name": s}
}

// SelectionOf returns the Selection of a question.
func SelectionOf(query url.Values) (Selection, error) {
	s := Selection(query["name"])
	return s, s.Check()
}
