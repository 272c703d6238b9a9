package decode

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Kind is a kind of value: how it is read, and what an editor is told of it.
type Kind[V any] struct {
	// Read reads one value. It reports what is wrong with it and then returns false.
	Read func(r *Reader, v any) (V, bool)

	// Schema lets through all that Read does, and as little more as it can say.
	Schema Schema

	standard *V // see Or; nil: the zero value
}

// Or gives k the value of a key that is not written. A list is shared, and must not be changed.
func (k Kind[V]) Or(standard V) Kind[V] {
	k.standard = &standard
	return k
}

// Text reads any string.
var Text = Kind[string]{Read: readText, Schema: Schema{Type: "string"}}

func readText(r *Reader, v any) (string, bool) {
	s, ok := as[string](r, v, "want a string")
	if !ok {
		return "", false
	}
	return r.word(s), true
}

// Matching reads a string that ok accepts; want says which those are.
func Matching(want string, ok func(string) bool) Kind[string] {
	return Text.And(func(r *Reader, s string) bool {
		if !ok(s) {
			r.Fault(r.name()+" is "+source.Excerpt(s), "want "+want)
		}
		return ok(s)
	})
}

// And reads what k reads, if check finds it good. What is not, check reports.
func (k Kind[V]) And(check func(r *Reader, x V) bool) Kind[V] {
	read := k.Read
	k.Read = func(r *Reader, v any) (V, bool) {
		var none V
		if x, ok := read(r, v); ok && check(r, x) {
			return x, true
		}
		return none, false
	}
	return k
}

// Instead gives the fault of a value itself, where hint knows one, another hint.
func (k Kind[V]) Instead(hint func(v any) string) Kind[V] {
	read := k.Read
	k.Read = func(r *Reader, v any) (V, bool) {
		before := len(r.faults)
		x, ok := read(r, v)
		if h := hint(v); h != "" && len(r.faults) == before+1 {
			r.faults[before].Hint = h
		}
		return x, ok
	}
	return k
}

// To reads what k reads, and makes something else of it.
func To[V, W any](k Kind[V], convert func(V) W) Kind[W] {
	return Kind[W]{Schema: k.Schema, Read: func(r *Reader, v any) (W, bool) {
		x, ok := k.Read(r, v)
		return convert(x), ok
	}}
}

// As gives k a pattern, a regular expression, for editors.
func (k Kind[V]) As(pattern string) Kind[V] {
	k.Schema.Pattern = pattern
	return k
}

// Bool reads true or false.
var Bool = Kind[bool]{Schema: Schema{Type: "boolean"}, Read: func(r *Reader, v any) (bool, bool) {
	return as[bool](r, v, "want true or false")
}}

// Number reads an integer from least to most.
func Number[N uint8 | uint16 | uint32 | int](least, most N) Kind[N] {
	lower, upper := int64(least), int64(most)
	return Kind[N]{Schema: Schema{Type: "integer", Minimum: &lower, Maximum: &upper}, Read: func(r *Reader, v any) (N, bool) {
		n, ok := v.(int64)
		if !ok {
			r.Fault(r.name()+" is "+describe(v), fmt.Sprintf("want a number from %d to %d", least, most))
			return 0, false
		}
		if n < int64(least) || n > int64(most) {
			r.Fault(fmt.Sprintf("%s is %d", r.name(), n), fmt.Sprintf("want %d to %d", least, most))
			return 0, false
		}
		return N(n), true
	}}
}

// oneOf reads one of several words, each of which means the value at its place; what names them in messages.
func oneOf[V any](what string, words []string, values []V) Kind[V] {
	return Kind[V]{Schema: Schema{Enum: words}, Read: func(r *Reader, v any) (V, bool) {
		var none V
		s, ok := readText(r, v)
		if !ok {
			return none, false
		}
		if i := slices.Index(words, s); i >= 0 {
			return values[i], true
		}
		r.Fault(fmt.Sprintf("unknown %s %s", what, source.Excerpt(s)), WantWord(s, words))
		return none, false
	}}
}

// Values reads one of several words of values that say these themselves.
func Values[V fmt.Stringer](what string, values ...V) Kind[V] {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = v.String()
	}
	return oneOf(what, words, values)
}

// Word reads one of several words as it is.
func Word(what string, words ...string) Kind[string] { return oneOf(what, words, words) }

// NoOrYes reads one of two words, of which the second is true.
func NoOrYes(what, no, yes string) Kind[bool] {
	return oneOf(what, []string{no, yes}, []bool{false, true})
}

// WantWord returns the hint for a word that is none of those.
func WantWord(s string, words []string) string {
	shown := slices.Clone(words)
	if i := slices.Index(shown, ""); i >= 0 {
		shown[i] = `""`
	}
	hint := "want " + source.Either(shown)
	if near := source.Nearest(s, words); near != "" {
		hint += fmt.Sprintf("; did you mean %q?", near)
	}
	return hint
}

// Duration reads a time as Go writes it, such as "90s" or "1h30m", from least to most.
func Duration(least, most time.Duration) Kind[time.Duration] {
	return Kind[time.Duration]{Schema: Schema{Type: "string", Pattern: durationPattern}, Read: func(r *Reader, v any) (time.Duration, bool) {
		s, ok := as[string](r, v, `want a time with its unit, such as "30s" or "1h30m"`)
		if !ok {
			return 0, false
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			r.Fault(fmt.Sprintf("%s is %s, which is not a duration", r.name(), source.Excerpt(s)), `want a number and its unit, such as "30s" or "1h30m"`)
			return 0, false
		}
		if d < least || d > most {
			r.Fault(fmt.Sprintf("%s is %s", r.name(), source.Excerpt(s)), fmt.Sprintf("want %s to %s", ShortDuration(least), ShortDuration(most)))
			return 0, false
		}
		return d, true
	}}
}

// durationPattern is what time.ParseDuration reads.
const durationPattern = `^[-+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`

// ShortDuration returns a time without parts that are zero: "3h", not "3h0m0s".
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// List reads a list of one kind; an empty list is nil. An element at fault is the zero value, and what
// is no list is a list of one such element, so that checks that cross values see
// that there is something they cannot know.
func List[V any](kind Kind[V]) Kind[[]V] {
	return Kind[[]V]{Schema: listOf(kind.Schema), Read: func(r *Reader, v any) ([]V, bool) {
		var out []V // nil of an empty list
		_, n := elements(v)
		out = slices.Grow(out, min(n, r.limit().max))
		read := func(_ int, v any) {
			x, _ := kind.Read(r, v)
			out = append(out, x)
		}
		if !Each(r, v, read) {
			return make([]V, 1), true
		}
		return out, true
	}}
}

// Unique reads a list in which nothing is twice.
func Unique[V comparable](kind Kind[V]) Kind[[]V] {
	k := List(kind)
	k.Schema.UniqueItems = true
	return k.And(func(r *Reader, out []V) bool {
		var none V // stands for an element at fault
		where := make(map[V]int, len(out))
		for i, x := range out {
			first, twice := where[x]
			if !twice {
				where[x] = i
			} else if x != none {
				key := r.path[len(r.path)-1].Key
				r.FaultAt(source.At(i), fmt.Sprintf("%s[%d] is the same as %s[%d]", key, i, key, first), "")
			}
		}
		return true
	})
}

// MapOf reads a table of any keys, whose values are of one kind.
func MapOf[V any](kind Kind[V]) Kind[map[string]V] {
	return Kind[map[string]V]{Schema: Schema{Type: "object", Others: &kind.Schema}, Read: func(r *Reader, v any) (map[string]V, bool) {
		table, ok := as[map[string]any](r, v, "want a table")
		if !ok || !r.Within(len(table)) {
			return nil, false
		}
		out := make(map[string]V, len(table))
		for key, v := range table {
			r.path = append(r.path, source.Step{Key: key, Index: -1})
			out[r.word(key)], _ = kind.Read(r, v)
			r.path = r.path[:len(r.path)-1]
		}
		return out, true
	}}
}
