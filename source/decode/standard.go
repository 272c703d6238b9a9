package decode

import (
	"fmt"
	"net/netip"
	"reflect"
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
func candidates(s Schema, v any) (list []any) {
	switch {
	case len(s.AnyOf) > 0:
		for _, one := range s.AnyOf {
			list = append(list, candidates(one, v)...)
		}
		return list
	case s.Type == "boolean":
		return []any{false, true}
	case len(s.Enum) > 0:
		for _, word := range s.Enum {
			list = append(list, word)
		}
		return list
	case s.Type == "array":
		return []any{listed(v)}
	}
	switch v := v.(type) {
	case time.Duration:
		return []any{ShortDuration(v)}
	case netip.Addr:
		if !v.IsValid() {
			return []any{""}
		}
	}
	rv := reflect.ValueOf(v)
	switch {
	case rv.CanInt():
		return []any{rv.Int()}
	case rv.CanUint():
		return []any{int64(rv.Uint())}
	}
	return []any{fmt.Sprint(v)}
}

// listed returns the elements of a list as a file writes them.
func listed(list any) []any {
	v, out := reflect.ValueOf(list), []any{}
	if v.Kind() != reflect.Slice {
		return out
	}
	for i := range v.Len() {
		out = append(out, fmt.Sprint(v.Index(i).Interface()))
	}
	return out
}
