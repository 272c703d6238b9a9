package source

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// A keyed field is one of a struct whose tag says under which key files write it: `key:"min_up"`, with "!" before it
// where the field is true when the key is false. A field that affects traffic and has no key in files is named in
// words. The tag note is of keys that only people read. A field without a tag does not affect Equal.
type keyed struct {
	key   string
	not   bool
	index int
}

// keyedBy returns the fields of a struct type that have a tag, in order.
func keyedBy[T any](tag string) (list []keyed) {
	t := reflect.TypeFor[T]()
	for i := range t.NumField() {
		if key, ok := t.Field(i).Tag.Lookup(tag); ok {
			name, not := strings.CutPrefix(key, "!")
			list = append(list, keyed{name, not, i})
		}
	}
	return list
}

var (
	serviceKeys  = keyedBy[Service]("key")
	serviceNotes = keyedBy[Service]("note")
	endpointKeys = keyedBy[Endpoint]("key")
	checkKeys    = keyedBy[HealthCheck]("key")
)

// value returns what the key says where the field has this value.
func (k *keyed) value(field reflect.Value) any {
	if k.not {
		return !field.Bool()
	}
	return field.Interface()
}

// equalBy reports whether two structs are the same in these fields.
func equalBy[T any](keys []keyed, a, b *T) bool {
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	return each(len(keys), func(i int) bool { return same(va.Field(keys[i].index), vb.Field(keys[i].index)) })
}

// same reports whether two fields are equal. A list or map without elements is the same as none.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Slice:
		if list, ok := a.Addr().Interface().(*[]Endpoint); ok {
			return slices.EqualFunc(*list, *b.Addr().Interface().(*[]Endpoint), Endpoint.equal)
		}
		return a.Len() == b.Len() && each(a.Len(), func(i int) bool { return same(a.Index(i), b.Index(i)) })
	case reflect.Struct:
		return each(a.NumField(), func(i int) bool { return same(a.Field(i), b.Field(i)) })
	case reflect.Pointer:
		return a.Pointer() == b.Pointer() || !a.IsNil() && !b.IsNil() && same(a.Elem(), b.Elem())
	case reflect.Map:
		return a.Len()+b.Len() == 0 || reflect.DeepEqual(a.Interface(), b.Interface())
	}
	return a.Equal(b)
}

// each reports whether all of n numbers are good.
func each(n int, good func(int) bool) bool {
	for i := range n {
		if !good(i) {
			return false
		}
	}
	return true
}

// Equal reports whether two services mean the same to the kernel: not to SameNotes. Positions are ignored.
func (s *Service) Equal(o *Service) bool { return s.Key == o.Key && equalBy(serviceKeys, s, o) }

// SameNotes reports whether two services say the same to people: what Equal passes over.
func (s *Service) SameNotes(o *Service) bool { return equalBy(serviceNotes, s, o) }

// Equal reports whether two checks ask the same and mean the same by the answers. Either may be nil.
func (c *HealthCheck) Equal(o *HealthCheck) bool { return same(reflect.ValueOf(c), reflect.ValueOf(o)) }

// A Difference is a key in which two services, endpoints or health checks differ.
type Difference struct {
	Key      string
	Old, New any // of the type of the field
}

// Differences returns the keys in which two services differ, whatever their names are.
func (s *Service) Differences(now *Service) []Difference { return differences(serviceKeys, s, now) }

// Differences returns the keys in which two endpoints differ.
func (e *Endpoint) Differences(now *Endpoint) []Difference { return differences(endpointKeys, e, now) }

// Differences returns the keys in which two health checks differ. Nil is one without any; of one that comes or goes
// the type is enough.
func (c *HealthCheck) Differences(now *HealthCheck) []Difference {
	if c == nil || now == nil {
		none := new(HealthCheck)
		return differences(checkKeys[:1], cmp.Or(c, none), cmp.Or(now, none))
	}
	return differences(checkKeys, c, now)
}

func differences[T any](keys []keyed, old, now *T) (list []Difference) {
	was, is := reflect.ValueOf(old).Elem(), reflect.ValueOf(now).Elem()
	for _, k := range keys {
		if a, b := was.Field(k.index), is.Field(k.index); !same(a, b) {
			list = append(list, Difference{k.key, k.value(a), k.value(b)})
		}
	}
	return list
}
