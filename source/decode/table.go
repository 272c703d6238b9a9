package decode

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Field is one key of a table, and how it is read into a T.
type Field[T any] struct {
	Key      string
	Required bool
	Read     func(r *Reader, v any, to *T)
	Value    func(of *T) any // the value of the key in a T; nil where there is none to show
	Schema   Schema
	Start    func(to *T) // sets the value of a key that is not written; nil: it is zero

	// Copy takes the value of the key over; nil: there is nothing to take. Default: a table of defaults may
	// have the key too, for each T that does not have it and that Needs accepts; nil: for all of those.
	Copy    func(from, to *T)
	Default bool
	Needs   func(of *T) bool
}

// Key makes the field of a key whose value is of a kind and stays in to. A value
// at fault leaves what is there.
func Key[T, V any](key string, kind Kind[V], in func(*T) *V) Field[T] {
	var start func(*T)
	if kind.standard != nil {
		start = func(to *T) { *in(to) = *kind.standard }
	}
	return Field[T]{
		Key:    key,
		Schema: kind.Schema,
		Start:  start,
		Value:  func(of *T) any { return *in(of) },
		Copy:   func(from, to *T) { *in(to) = *in(from) },
		Read: func(r *Reader, v any, to *T) {
			if x, ok := kind.Read(r, v); ok {
				*in(to) = x
			}
		},
	}
}

// Standard returns what holds where none of these keys is written.
func Standard[T any](fields []Field[T]) (start T) {
	for _, f := range fields {
		if f.Start != nil {
			f.Start(&start)
		}
	}
	return start
}

// Defaults returns the fields of a table of defaults.
func Defaults[T any](fields []Field[T]) []Field[T] {
	var list []Field[T]
	for _, f := range fields {
		if f.Default {
			f.Required = false
			list = append(list, f)
		}
	}
	return list
}

// Need makes the key of a field required.
func Need[T any](f Field[T]) Field[T] {
	f.Required = true
	return f
}

// Table reads v, a table that has these keys and no others, into to.
func Table[T any](r *Reader, v any, fields []Field[T], to *T) bool {
	table, ok := as[map[string]any](r, v, "want a table")
	if !ok {
		return false
	}
	known := 0
	var missing []string
	for i := range fields {
		f := &fields[i]
		v, ok := table[f.Key]
		switch {
		case ok:
			known++
			r.In(f.Key, func() { f.Read(r, v, to) })
		case f.Required:
			missing = append(missing, f.Key)
		}
	}
	var meant []string
	if known < len(table) {
		meant = unknown(r, table, fields)
	}
	for _, key := range missing {
		if !slices.Contains(meant, key) { // else that fault says it
			r.FaultAt(source.At(key), fmt.Sprintf("key %q is missing", key), "")
		}
	}
	return true
}

// unknown reports the keys of a table that are none of its fields. It returns
// those that it says were meant.
func unknown[T any](r *Reader, table map[string]any, fields []Field[T]) (meant []string) {
	var names, unused []string
	for _, f := range fields {
		names = append(names, f.Key)
		if _, used := table[f.Key]; !used {
			unused = append(unused, f.Key)
		}
	}
	for key := range table {
		if slices.Contains(names, key) {
			continue
		}
		if r.Full() { // nobody would see the hint
			r.add(pathFault{})
			break
		}
		near, hint := r.hint(key, unused)
		f := pathFault{onKey: true, Problem: source.Problem{Path: r.below(key), Msg: "unknown key " + source.Excerpt(key), Hint: cmp.Or(hint, "want "+source.Either(names))}}
		if near != "" {
			f.Hint, f.meant = fmt.Sprintf("did you mean %q?", near), r.below(near)
			meant = append(meant, near)
		}
		r.add(f)
	}
	return meant
}

// TableOf reads a table of these fields; start is what holds where none is written.
func TableOf[V any](fields []Field[V], start V) Kind[V] {
	return Kind[V]{Schema: tableSchema(fields, start), Read: func(r *Reader, v any) (V, bool) {
		x := start
		ok := Table(r, v, fields, &x)
		return x, ok
	}}
}

// tableSchema returns what can be said of a table of these fields; start is what
// holds where none is written.
func tableSchema[T any](fields []Field[T], start T) Schema {
	s := Schema{Type: "object", Others: false}
	for _, f := range fields {
		schema := f.Schema
		schema.Default = f.standard(start)
		s.Properties = append(s.Properties, Property{f.Key, schema})
		if f.Required {
			s.Required = append(s.Required, f.Key)
		}
	}
	return s
}

// standard returns what a file could write for the key without changing start, and
// nil where it could write nothing.
func (f Field[T]) standard(start T) any {
	if f.Value == nil || f.Required {
		return nil
	}
	for _, candidate := range candidates(f.Schema, f.Value(&start)) {
		r, to := NewReader(nil), start
		f.Read(r, candidate, &to)
		if !r.Failed() && alike(f.Value(&start), f.Value(&to)) {
			return candidate
		}
	}
	return nil
}

// alike reports whether two values are the same. An empty list is one that is not there.
func alike(a, b any) bool {
	va := reflect.ValueOf(a)
	return reflect.DeepEqual(a, b) || va.Kind() == reflect.Slice && va.Len() == 0 && reflect.ValueOf(b).Len() == 0
}

// candidates returns what may be written for a value that is v in the program.
func candidates(s Schema, v any) []any {
	list := []any{false, true}
	for _, one := range slices.Concat(s.AnyOf, []Schema{s}) {
		for _, word := range one.Enum {
			list = append(list, word)
		}
	}
	switch v := v.(type) {
	case time.Duration:
		return []any{ShortDuration(v)}
	case netip.Addr:
		if !v.IsValid() {
			return []any{""}
		}
	}
	switch rv := reflect.ValueOf(v); {
	case rv.CanInt():
		list = append(list, rv.Int())
	case rv.CanUint():
		list = append(list, int64(rv.Uint()))
	case rv.Kind() == reflect.Slice:
		elements := []any{}
		for i := range rv.Len() {
			elements = append(elements, fmt.Sprint(rv.Index(i).Interface()))
		}
		return append(list, elements)
	}
	return append(list, fmt.Sprint(v), []any{})
}
