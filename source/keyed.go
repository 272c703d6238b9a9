package source

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// keyedBy returns the fields of a struct type that have a tag, in order. The tag says under which key files write a
// field: `key:"min_up"`, with "!" before it where the field is true when the key is false. A field that affects traffic
// and has no key in files is named in words. The tag note is of keys that only people read. A field without a tag does
// not affect Equal.
func keyedBy[T any](tag string) []reflect.StructField {
	fields := reflect.VisibleFields(reflect.TypeFor[T]())
	return slices.DeleteFunc(fields, func(f reflect.StructField) bool { return f.Tag.Get(tag) == "" })
}

var (
	serviceKeys  = keyedBy[Service]("key")
	serviceNotes = keyedBy[Service]("note")
	endpointKeys = keyedBy[Endpoint]("key")
	extrasKeys   = keyedBy[Extras]("key")
	checkKeys    = keyedBy[HealthCheck]("key")
)

// equalBy reports whether two structs are the same in these fields.
func equalBy[T any](keys []reflect.StructField, a, b *T) bool {
	va, vb := reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem()
	return each(len(keys), func(i int) bool { return same(va.FieldByIndex(keys[i].Index), vb.FieldByIndex(keys[i].Index)) })
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

// equal compares by hand what equalBy would take seven times as long for: a service has thousands of endpoints.
func (e Endpoint) equal(o Endpoint) bool {
	return e.Addr == o.Addr && maps.Equal(e.Ports, o.Ports) && (e.extras == o.extras || sameExtras(e.Extras(), o.Extras())) &&
		e.Weight == o.Weight && e.Tier == o.Tier && e.Disabled == o.Disabled &&
		e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating
}

// sameExtras compares Hints by what they say: these may be equal where extras are not.
func sameExtras(a, b Extras) bool { return equalBy(extrasKeys, &a, &b) }

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
func (e *Endpoint) Differences(now *Endpoint) []Difference {
	list := differences(endpointKeys, e, now)
	if e.extras != now.extras {
		was, is := e.Extras(), now.Extras()
		list = append(differences(extrasKeys, &was, &is), list...)
	}
	return list
}

// Differences returns the keys in which two health checks differ. Nil is one without any; of one that comes or goes
// the type is enough.
func (c *HealthCheck) Differences(now *HealthCheck) []Difference {
	if c == nil || now == nil {
		none := new(HealthCheck)
		return differences(checkKeys[:1], cmp.Or(c, none), cmp.Or(now, none))
	}
	return differences(checkKeys, c, now)
}

func differences[T any](keys []reflect.StructField, old, now *T) (list []Difference) {
	was, is := reflect.ValueOf(old).Elem(), reflect.ValueOf(now).Elem()
	for _, k := range keys {
		a, b := was.FieldByIndex(k.Index), is.FieldByIndex(k.Index)
		if same(a, b) {
			continue
		}
		d := Difference{k.Tag.Get("key"), a.Interface(), b.Interface()}
		if key, not := strings.CutPrefix(d.Key, "!"); not {
			d = Difference{key, !a.Bool(), !b.Bool()}
		}
		list = append(list, d)
	}
	return list
}
