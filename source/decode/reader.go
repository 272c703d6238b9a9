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
		offs := make([]int, len(paths))
		for i, n := range d.nodes(paths) {
			if offs[i] = n.val; r.faults[i].onKey {
				offs[i] = n.key
			}
		}
		for i, pos := range d.places(offs) {
			out[i].Pos = pos
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

// Collect returns what was read of each element of a list.
func Collect[T any](r *Reader, v any, read func(v any) T) []T {
	_, n := elements(v)
	list := slices.Grow([]T(nil), min(n, r.limit().max))
	Each(r, v, func(_ int, v any) { list = append(list, read(v)) })
	return list
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

// as returns a value if it is of this type. What is not, it reports with the hint.
func as[V any](r *Reader, v any, hint string) (V, bool) {
	x, ok := v.(V)
	if !ok {
		r.Fault(r.name()+" is "+describe(v), hint)
	}
	return x, ok
}
