package control

import (
	"net/url"
	"slices"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/source"
)

// A Selection says which services are meant.
type Selection = source.Selection

// Unmatched returns the patterns that mean none of some services.
func Unmatched(which Selection, list []proxier.ServiceStatus) []string {
	return slices.DeleteFunc(slices.Clone(which), func(pattern string) bool {
		one := Selection{pattern}
		return slices.ContainsFunc(list, func(s proxier.ServiceStatus) bool {
			return one.Matches(source.Key{Namespace: s.Namespace, Name: s.Name}, s.Labels)
		})
	})
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
