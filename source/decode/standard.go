package decode

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"
)

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
