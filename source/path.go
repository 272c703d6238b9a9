package source

import (
	"fmt"
	"slices"
	"strings"
)

// A Path is the way from the root of a tree to a value, as keys of tables and
// indexes of lists.
type Path []Step

// A Step is one key or one index of a Path.
type Step struct {
	Key   string
	Index int // from 0; -1: the step is a key
}

// At makes a path of strings, which are keys, and ints, which are indexes.
func At(steps ...any) Path {
	p := make(Path, 0, len(steps))
	for _, s := range steps {
		switch s := s.(type) {
		case string:
			p = append(p, Step{Key: s, Index: -1})
		case int:
			p = append(p, Step{Index: s})
		}
	}
	return p
}

// String returns the path as a program would write it: endpoints[3].port.
func (p Path) String() string {
	var b strings.Builder
	for i, s := range p {
		switch {
		case s.Index >= 0:
			fmt.Fprintf(&b, "[%d]", s.Index)
		case i > 0:
			b.WriteString("." + bare(s.Key))
		default:
			b.WriteString(bare(s.Key))
		}
	}
	return b.String()
}

// bare returns a key as it is when it is a plain word, else quoted: a file may
// hold any key, and paths stand in messages.
func bare(key string) string {
	if IsName(key) && !strings.Contains(key, ".") {
		return key
	}
	return Excerpt(key)
}

// Under reports whether p is q or lies below it.
func (p Path) Under(q Path) bool { return len(p) >= len(q) && slices.Equal(p[:len(q)], q) }
