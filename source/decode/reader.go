package decode

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// moreFaults says that there are more.
const moreFaults = "the file has more faults; the first %d found are shown"

// A Reader reads values out of a tree and collects everything that is wrong
// with them. It knows the path of the value that is being read.
type Reader struct {
	path   source.Path
	faults []pathFault
	failed bool // one was not a warning
	more   bool // there were faults beyond maxFaults
	worse  bool // and one of those was not a warning
	words  map[string]string
	limits map[string]limit // of lists and tables, by their key

	// Hint says what was meant by a key that the table at path does not have: one
	// that it has, or what to do with it. Nil: nobody knows.
	Hint func(path source.Path, key string) (meant, hint string)
}

// A limit bounds how many elements a list has.
type limit struct {
	max  int
	hint string
}

// A pathFault is a fault at a value, or at the key of it.
type pathFault struct {
	source.Problem
	onKey    bool
	meant    source.Path // of a key that is unknown: the key of the table that it stands for; nil: none
	crossing bool        // from Problem
}

// NewReader returns a Reader that stands at path.
func NewReader(path source.Path) *Reader {
	return &Reader{path: path, words: map[string]string{}, limits: map[string]limit{}}
}

// Limit makes it a fault for the list or table of a key to have more than most
// elements. The hint says what to do about it.
func (r *Reader) Limit(key string, most int, hint string) { r.limits[key] = limit{most, hint} }

// bound returns how many of the n elements of the value that is being read are
// within its limit, and reports the one that is not.
func (r *Reader) bound(n int) int {
	l := r.limit()
	if n > l.max {
		r.Fault(fmt.Sprintf("%s has %d elements, more than %d", r.name(), n, l.max), l.hint)
	}
	return min(n, l.max)
}

// limit returns the limit of the value that is being read.
func (r *Reader) limit() limit {
	if len(r.path) > 0 {
		if l, ok := r.limits[r.path[len(r.path)-1].Key]; ok {
			return l
		}
	}
	return limit{max: math.MaxInt}
}

// Within reports whether n elements of the value that is being read are within its limit, and whether
// they are not, as a fault.
func (r *Reader) Within(n int) bool { return r.bound(n) == n }

// Fault reports the value that is being read.
func (r *Reader) Fault(msg, hint string) {
	r.FaultAt(nil, msg, hint)
}

// FaultAt reports a value below the one that is being read.
func (r *Reader) FaultAt(below source.Path, msg, hint string) {
	r.add(pathFault{Problem: source.Problem{Path: slices.Concat(r.path, below), Msg: msg, Hint: hint}})
}

// Problem reports what crosses values, at a path below the one that is being
// read. It is dropped where a value at or below that path, or the value that
// holds it, is itself at fault: it may be no more than a consequence. The same is
// reported once. So it is dropped at and below a key whose value stands under a misspelt one.
func (r *Reader) Problem(p source.Problem) {
	at := slices.Concat(r.path, p.Path)
	for _, f := range r.faults {
		if r.Full() { // what is a consequence does not matter any more
			break
		}
		if f.crossing {
			if f.Msg == p.Msg && slices.Equal(f.Path, at) {
				return
			}
			continue
		}
		if !f.onKey && (f.Path.Under(at) || at.Under(f.Path)) || f.meant != nil && at.Under(f.meant) {
			return
		}
		if f.onKey && p.Warning && (f.Path.Under(at) || at.Under(f.Path[:len(f.Path)-1])) {
			return // what is missing may be what that key was meant to be
		}
	}
	p.Path = at
	r.add(pathFault{Problem: p, crossing: true})
}

func (r *Reader) add(f pathFault) {
	r.failed = r.failed || !f.Warning
	if r.Full() {
		r.more = true
		r.worse = r.worse || !f.Warning
		return
	}
	r.faults = append(r.faults, f)
}

// Full reports whether no more faults are kept.
func (r *Reader) Full() bool { return len(r.faults) == maxFaults }

// Failed reports whether a fault that is not a warning has been found.
func (r *Reader) Failed() bool { return r.failed }

// Faults returns everything found, in the order of the text of d. Without a
// document, as for flags, the faults have no position.
func (r *Reader) Faults(d *Doc) []source.Fault {
	if len(r.faults) == 0 {
		return nil
	}
	out := make([]source.Fault, len(r.faults), len(r.faults)+1)
	paths := make([]source.Path, len(r.faults))
	for i, f := range r.faults {
		out[i], paths[i] = source.Fault{Msg: f.Msg, Hint: f.Hint, Warning: f.Warning}, f.Path
	}
	if d != nil {
		for i, n := range d.nodes(paths) {
			off := n.val
			if r.faults[i].onKey {
				off = n.key
			}
			out[i].Pos = d.place(off)
		}
	}
	slices.SortStableFunc(out, func(a, b source.Fault) int {
		return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
	if r.more {
		out = append(out, source.Fault{Pos: source.Position{File: out[0].Pos.File}, Msg: fmt.Sprintf(moreFaults, maxFaults), Warning: !r.worse})
	}
	return out
}

// Take returns everything found, as Faults does, and forgets it.
func (r *Reader) Take(d *Doc) []source.Fault {
	out := r.Faults(d)
	r.faults, r.failed, r.more, r.worse = nil, false, false, false
	return out
}

// Problems returns everything found, with paths from the root, in the order in which it was found.
func (r *Reader) Problems() []source.Problem {
	out := make([]source.Problem, len(r.faults))
	for i, f := range r.faults {
		out[i] = f.Problem
	}
	return out
}

// TooMany reports whether faults of a file are more than are kept of one.
func TooMany(faults []source.Fault) bool { return len(faults) > maxFaults }

// Cap returns as many faults of a file as are kept of one.
func Cap(file string, faults []source.Fault) []source.Fault {
	if !TooMany(faults) {
		return faults
	}
	worse := source.AnyError(faults[maxFaults:])
	return append(faults[:maxFaults:maxFaults], source.Fault{Pos: source.Position{File: file}, Msg: fmt.Sprintf(moreFaults, maxFaults), Warning: !worse})
}

// name says which value is being read, without what leads to its table: "port",
// "vips[1]".
func (r *Reader) name() string {
	from := len(r.path) - 1
	for from > 0 && r.path[from].Index >= 0 {
		from--
	}
	return r.path[max(from, 0):].String()
}

// word returns a copy of s that does not keep the text it was cut from in
// memory, the same copy for every s that is equal.
func (r *Reader) word(s string) string {
	w, ok := r.words[s]
	if !ok {
		w = strings.Clone(s)
		r.words[w] = w
	}
	return w
}

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

// hint returns the unused key that was meant by another, or what to do with it.
func (r *Reader) hint(key string, unused []string) (meant, hint string) {
	if r.Hint != nil {
		if meant, hint = r.Hint(r.path, key); hint != "" || slices.Contains(unused, meant) {
			return meant, hint
		}
	}
	return source.Nearest(key, unused), ""
}

// below returns the path of a key of the table that is being read.
func (r *Reader) below(key string) source.Path {
	return append(slices.Clone(r.path), source.Step{Key: key, Index: -1})
}

// Each calls read for every element of v, a list, with the Reader standing at
// it. A value that is no list is a fault; of a list that is longer than its limit
// only what is within is read.
func Each(r *Reader, v any, read func(i int, v any)) bool {
	if at, n := elements(v); at != nil {
		for i := range r.bound(n) {
			r.path = append(r.path, source.Step{Index: i})
			read(i, at(i))
			r.path = r.path[:len(r.path)-1]
		}
		return true
	}
	hint := "want a list"
	if s, ok := v.(string); ok {
		hint = fmt.Sprintf("want a list: [%s]", source.Excerpt(s))
		if words := strings.FieldsFunc(s, func(c rune) bool { return c == ',' || c == ' ' }); len(words) > 1 && len(s) <= 200 {
			for i := range words {
				words[i] = source.Excerpt(words[i])
			}
			hint = "want a list: [" + strings.Join(words, ", ") + "]"
		}
	}
	r.Fault(r.name()+" is "+describe(v), hint)
	return false
}

// elements returns how many elements a list has, and each by its index; nil: it is no list.
func elements(v any) (at func(int) any, n int) {
	switch list := v.(type) {
	case []any:
		return func(i int) any { return list[i] }, len(list)
	case []map[string]any:
		return func(i int) any { return list[i] }, len(list)
	}
	return nil, 0
}

// In does something with the Reader standing at a key of the table that is being read.
func (r *Reader) In(key string, do func()) {
	r.path = append(r.path, source.Step{Key: key, Index: -1})
	do()
	r.path = r.path[:len(r.path)-1]
}
