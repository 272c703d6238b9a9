package control

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Selection says which services are meant: a name, or namespace/name, either with the
// wildcards of path.Match. An empty one means all.
type Selection []string

// Check returns what is wrong with a pattern.
func (s Selection) Check() error {
	for _, pattern := range s {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%q is no name or pattern of services; want web, prod/web, or with wildcards prod/* or web-?", pattern)
		}
	}
	return nil
}

// Matches reports whether a service is meant.
func (s Selection) Matches(key source.Key) bool {
	return len(s) == 0 || slices.ContainsFunc(s, func(pattern string) bool { return matches(pattern, key) })
}

// matches reports whether a pattern means a service.
func matches(pattern string, key source.Key) bool {
	namespace, name, both := strings.Cut(pattern, "/")
	if !both {
		namespace, name = "*", pattern
	}
	ok, _ := path.Match(name, key.Name) // Check has found bad ones
	if !ok || namespace == "*" {
		return ok
	}
	ok, _ = path.Match(namespace, key.Namespace)
	return ok
}

// Unmatched returns the patterns that mean none of some services.
func (s Selection) Unmatched(services []source.Key) []string {
	return slices.DeleteFunc(slices.Clone(s), func(pattern string) bool {
		return slices.ContainsFunc(services, func(key source.Key) bool { return matches(pattern, key) })
	})
}

// query returns s as SelectionOf reads it.
func (s Selection) query() url.Values {
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
