package decode

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy/source"
)

// A Kind is a kind of value: how it is read, and what an editor is told of it.
type Kind[V any] struct {
	// Read reads one value. It reports what is wrong with it and then returns false.
	Read func(r *Reader, v any) (V, bool)

	// Schema lets through all that Read does, and as little more as it can say.
	Schema Schema
}

// Text reads any string.
var Text = Kind[string]{readText, Schema{Type: "string"}}

func readText(r *Reader, v any) (string, bool) {
	s, ok := v.(string)
	if !ok {
		r.Fault(r.name()+" is "+describe(v), "want a string")
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
var Bool = Kind[bool]{readBool, Schema{Type: "boolean"}}

func readBool(r *Reader, v any) (bool, bool) {
	b, ok := v.(bool)
	if !ok {
		r.Fault(r.name()+" is "+describe(v), "want true or false")
	}
	return b, ok
}

// Number reads an integer from min to max.
func Number[N uint16 | int](min, max N) Kind[N] {
	least, most := int64(min), int64(max)
	return Kind[N]{Schema: Schema{Type: "integer", Minimum: &least, Maximum: &most}, Read: func(r *Reader, v any) (N, bool) {
		n, ok := v.(int64)
		if !ok {
			r.Fault(r.name()+" is "+describe(v), fmt.Sprintf("want a number from %d to %d", min, max))
			return 0, false
		}
		if n < int64(min) || n > int64(max) {
			r.Fault(fmt.Sprintf("%s is %d", r.name(), n), fmt.Sprintf("want %d to %d", min, max))
			return 0, false
		}
		return N(n), true
	}}
}

// A Choice is a word of a file and what it means.
type Choice[V any] struct {
	Word  string
	Means V
}

// OneOf reads one of several words; what names them in messages.
func OneOf[V any](what string, choices ...Choice[V]) Kind[V] {
	words := make([]string, len(choices))
	for i, c := range choices {
		words[i] = c.Word
	}
	return Kind[V]{Schema: Schema{Enum: words}, Read: func(r *Reader, v any) (V, bool) {
		var none V
		s, ok := readText(r, v)
		if !ok {
			return none, false
		}
		if i := slices.Index(words, s); i >= 0 {
			return choices[i].Means, true
		}
		r.Fault(fmt.Sprintf("unknown %s %s", what, source.Excerpt(s)), wantWord(s, words))
		return none, false
	}}
}

// Word reads one of several words as it is.
func Word(what string, words ...string) Kind[string] {
	choices := make([]Choice[string], len(words))
	for i, w := range words {
		choices[i] = Choice[string]{w, w}
	}
	return OneOf(what, choices...)
}

func wantWord(s string, words []string) string {
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

// Duration reads a time as Go writes it, such as "90s" or "1h30m", from min to max.
func Duration(min, max time.Duration) Kind[time.Duration] {
	return Kind[time.Duration]{Schema: Schema{Type: "string", Pattern: durationPattern}, Read: func(r *Reader, v any) (time.Duration, bool) {
		s, ok := v.(string)
		if !ok {
			r.Fault(r.name()+" is "+describe(v), `want a time with its unit, such as "30s" or "1h30m"`)
			return 0, false
		}
		d, err := time.ParseDuration(s)
		if err != nil {
			r.Fault(fmt.Sprintf("%s is %s, which is no time", r.name(), source.Excerpt(s)), `want a number and its unit, such as "30s" or "1h30m"`)
			return 0, false
		}
		if d < min || d > max {
			r.Fault(fmt.Sprintf("%s is %s", r.name(), source.Excerpt(s)), fmt.Sprintf("want %s to %s", ShortDuration(min), ShortDuration(max)))
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

// Addr reads an IP address.
var Addr = Kind[netip.Addr]{readAddr, Schema{Type: "string", Pattern: addrPattern}}

// addrPattern holds no address to what it must be in full: an editor says sooner
// that a name will not do, and check says the rest.
const addrPattern = `^[0-9a-fA-F:.]+$`

func readAddr(r *Reader, v any) (netip.Addr, bool) {
	s, ok := v.(string)
	if !ok {
		r.Fault(r.name()+" is "+describe(v), "want an IP address as a string")
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		r.Fault(source.Excerpt(s)+" is not an IP address", addrHint(s))
	case a.Zone() != "":
		r.Fault(source.Excerpt(s)+" has a zone", "want an address that means the same on every link")
	case a.Is4In6():
		r.Fault(source.Excerpt(s)+" is an IPv4 address written in IPv6", fmt.Sprintf("write %q", a.Unmap()))
	default:
		return a, true
	}
	return netip.Addr{}, false
}

// addrHint says what to write instead of what is no address.
func addrHint(s string) string {
	if p, err := netip.ParsePrefix(s); err == nil {
		return fmt.Sprintf("write %q, without the length", p.Addr())
	}
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return fmt.Sprintf("write %q, without the port", ap.Addr())
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r >= 'g' && r <= 'z' }) {
		return "names are not looked up: write the address"
	}
	return ""
}

// Prefix reads a range of addresses, such as "10.0.0.0/8".
var Prefix = Kind[netip.Prefix]{readPrefix, Schema{Type: "string", Pattern: prefixPattern}}

const prefixPattern = `^[0-9a-fA-F:.]+/[0-9]+$`

func readPrefix(r *Reader, v any) (netip.Prefix, bool) {
	s, ok := v.(string)
	if !ok {
		r.Fault(r.name()+" is "+describe(v), `want a range as a string, such as "10.0.0.0/8"`)
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		r.Fault(source.Excerpt(s)+" is not a range of addresses", prefixHint(s))
	case p.Addr().Is4In6():
		r.Fault(source.Excerpt(s)+" is a range of IPv4 addresses written in IPv6", "write it in IPv4")
	case p != p.Masked():
		r.Fault(fmt.Sprintf("%q has bits set behind its length of %d", p, p.Bits()), fmt.Sprintf("write %q", p.Masked()))
	default:
		return p, true
	}
	return netip.Prefix{}, false
}

func prefixHint(s string) string {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return fmt.Sprintf("write %q for this one address", netip.PrefixFrom(a, a.BitLen()))
	}
	return `want an address and a length, such as "10.0.0.0/8"`
}

// List reads a list of one kind; an empty list is nil. An element at fault is the zero value, and what
// is no list is a list of one such element, so that checks that cross values see
// that there is something they cannot know.
func List[V any](kind Kind[V]) Kind[[]V] {
	return Kind[[]V]{Schema: listOf(kind.Schema), Read: func(r *Reader, v any) ([]V, bool) {
		var out []V
		read := func(_ int, v any) {
			x, _ := kind.Read(r, v)
			out = append(out, x)
		}
		if !Each(r, v, read) {
			return make([]V, 1), true
		}
		return slices.Clip(out), true
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
				r.element(i, nil, func(int, any) {
					r.Fault(fmt.Sprintf("%s is the same as %s[%d]", r.name(), r.path[len(r.path)-2].Key, first), "")
				})
			}
		}
		return true
	})
}

// describe says what a value is, for messages about wrong types.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return source.Excerpt(v) + ", a string"
	case bool:
		return strconv.FormatBool(v) + ", a boolean"
	case int64:
		return strconv.FormatInt(v, 10) + ", a number"
	case float64:
		return float(v) + ", a number with a fraction"
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "a list"
	case time.Time:
		return "a date or time"
	}
	return "of a type that no key has"
}

func float(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e6 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// MapOf reads a table of any keys, whose values are of one kind.
func MapOf[V any](kind Kind[V]) Kind[map[string]V] {
	return Kind[map[string]V]{Schema: Schema{Type: "object", Others: &kind.Schema}, Read: func(r *Reader, v any) (map[string]V, bool) {
		table, ok := v.(map[string]any)
		if !ok {
			r.Fault(r.name()+" is "+describe(v), "want a table")
			return nil, false
		}
		if r.bound(len(table)) < len(table) {
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

// TableOf reads a table of these fields; start is what holds where none is written.
func TableOf[V any](fields []Field[V], start V) Kind[V] {
	return Kind[V]{Schema: tableSchema(fields), Read: func(r *Reader, v any) (V, bool) {
		x := start
		ok := Table(r, v, fields, &x)
		return x, ok
	}}
}
