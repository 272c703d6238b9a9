// Package structtest makes values that differ in one place, for tests of what
// must look at every field: a new field is then not forgotten.
package structtest

import (
	"fmt"
	"net/netip"
	"reflect"
	"time"
)

// Changes returns, by the path of what differs, values that each differ in one
// place from Filled: in a field, an element, or whether there is one. A kind of
// field that it does not know panics.
func Changes[T any]() map[string]*T {
	changed := map[string]*T{}
	for i := 0; ; i++ {
		v := Filled[T]()
		all := changes(reflect.ValueOf(v).Elem(), "")
		if i == len(all) {
			return changed
		}
		all[i].apply()
		changed[all[i].path] = v
	}
}

// Filled returns a value without a zero in it: every list, map and pointer has one element, filled too.
func Filled[T any]() *T {
	v := new(T)
	fill(reflect.ValueOf(v).Elem())
	return v
}

// literals are the values of types that are not looked into, and another one of each.
var literals = map[reflect.Type][2]any{
	reflect.TypeFor[netip.Addr]():     {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")},
	reflect.TypeFor[netip.AddrPort](): {netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.1:81")},
	reflect.TypeFor[netip.Prefix]():   {netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.0/25")},
	reflect.TypeFor[time.Time]():      {time.Unix(1, 0), time.Unix(2, 0)},
}

func fill(v reflect.Value) {
	if both, ok := literals[v.Type()]; ok {
		v.Set(reflect.ValueOf(both[0]))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !canonical(v.Type().Field(i)) {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	default:
		change(v)
	}
}

// canonical reports whether a field is an unexported unique.Handle, which only its package can set: who tests it
// makes values of the type behind it.
func canonical(f reflect.StructField) bool { return !f.IsExported() && f.Type.PkgPath() == "unique" }

// change gives a plain value another one.
func change(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	case v.CanFloat():
		v.SetFloat(v.Float() + 1)
	default:
		panic(fmt.Sprintf("structtest: a field of type %v", v.Type()))
	}
}

// A variation is one change of a value.
type variation struct {
	path  string
	apply func()
}

func changes(v reflect.Value, path string) []variation {
	if both, ok := literals[v.Type()]; ok {
		return []variation{{path, func() { v.Set(reflect.ValueOf(both[1])) }}}
	}
	gone := variation{path + " gone", v.SetZero}
	switch v.Kind() {
	case reflect.Struct:
		var all []variation
		for i := range v.NumField() {
			if canonical(v.Type().Field(i)) {
				continue
			}
			all = append(all, changes(v.Field(i), path+"."+v.Type().Field(i).Name)...)
		}
		return all
	case reflect.Slice:
		more := variation{path + " twice", func() { v.Set(reflect.Append(v, v.Index(0))) }}
		return append(changes(v.Index(0), path+"[0]"), gone, more)
	case reflect.Pointer:
		return append(changes(v.Elem(), path), gone)
	case reflect.Map:
		return append(ofMap(v, path), gone)
	}
	return []variation{{path, func() { change(v) }}}
}

// ofMap are the changes of a map with one key.
func ofMap(v reflect.Value, path string) []variation {
	key := v.MapKeys()[0]
	put := func(change func(key, value reflect.Value)) func() {
		return func() {
			k, e := reflect.New(key.Type()).Elem(), reflect.New(v.Type().Elem()).Elem()
			k.Set(key)
			e.Set(v.MapIndex(key))
			change(k, e)
			v.Clear()
			v.SetMapIndex(k, e)
		}
	}
	return []variation{
		{path + " key", put(func(key, _ reflect.Value) { change(key) })},
		{path + " value", put(func(_, value reflect.Value) { change(value) })},
	}
}
