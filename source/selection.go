package source

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// A Selection says which services are meant: a name, or namespace/name, either with the
// wildcards of path.Match, or label=value with those in the value. An empty one means all.
type Selection []string

// Check returns what is wrong with a pattern.
func (s Selection) Check() error {
	for _, pattern := range s {
		key, value, labelled := strings.Cut(pattern, "=")
		if labelled {
			pattern = value
		}
		_, err := path.Match(pattern, "")
		switch {
		case labelled && (err != nil || !IsLabelKey(key)):
			return fmt.Errorf("%s is no pattern of labels; want team=web, or with wildcards team=* or team=web-?", Excerpt(key+"="+value))
		case !labelled && (err != nil || pattern == ""):
			return fmt.Errorf("%s is no name or pattern of services; want web, prod/web, or with wildcards prod/* or web-?, or a label as in team=web", Excerpt(pattern))
		}
	}
	return nil
}

// Labels reports whether a pattern is about labels.
func (s Selection) Labels() bool {
	return slices.ContainsFunc(s, func(pattern string) bool { return strings.Contains(pattern, "=") })
}

// Matches reports whether a service with this name and these labels is meant.
func (s Selection) Matches(key Key, labels map[string]string) bool {
	return len(s) == 0 || slices.ContainsFunc(s, func(pattern string) bool { return selects(pattern, key, labels) })
}

// selects reports whether a pattern means a service. Check has found bad ones.
func selects(pattern string, key Key, labels map[string]string) bool {
	if name, value, labelled := strings.Cut(pattern, "="); labelled {
		is, has := labels[name]
		ok, _ := path.Match(value, is)
		return has && ok
	}
	namespace, name, both := strings.Cut(pattern, "/")
	if !both {
		namespace, name = "*", pattern
	}
	ok, _ := path.Match(name, key.Name)
	if !ok || namespace == "*" {
		return ok
	}
	ok, _ = path.Match(namespace, key.Namespace)
	return ok
}
