// Package decode turns TOML and JSON into one tree of values, knows where in
// the text each of them stands, and reads trees by tables of keys.
//
// A tree is made of map[string]any, []any, []map[string]any (what TOML makes of
// [[headers]]), string, int64, float64, bool, nil and the dates of TOML.
package decode

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
)

// A Doc is a text that has been decoded.
type Doc struct {
	Root map[string]any

	file string
	data string // without byte order mark
	json bool
	list string // the key in Root of a text that is a list, without a key; empty: it is none

	// The offset that place was last asked for, how many lines are before it, and where its own begins.
	at, lines, start int
}

// TOML decodes a text in TOML. The Doc is nil when the text is at fault.
func TOML(file string, data []byte) (*Doc, []source.Fault) { return decode(&Doc{file: file}, data, "") }

// JSON decodes a text in JSON, whose root must be an object. The Doc is nil
// when the text is at fault. A key that is in an object twice is a fault too, but
// leaves a Doc, so that more faults can be found.
func JSON(file string, data []byte) (*Doc, []source.Fault) { return JSONList(file, data, "") }

// JSONList decodes a text in JSON as JSON does, and also, if key is not empty, one that is no more than a list:
// that is read as the one key of an object.
func JSONList(file string, data []byte, key string) (*Doc, []source.Fault) {
	return decode(&Doc{file: file, json: true}, data, key)
}

func decode(d *Doc, data []byte, key string) (*Doc, []source.Fault) {
	d.data = strings.TrimPrefix(string(data), "\ufeff")
	s, faults := d.check()
	switch {
	case faults != nil:
	case d.json:
		faults = d.makeJSON(s, key)
	default:
		if d.Root, faults = parseTOML(d.data); d.Root != nil && s.again != nil {
			d.Root, faults = nil, []textFault{*s.again}
		}
	}
	if s != nil && d.Root == nil && len(faults) == 1 {
		faults[0] = guess(d.data, d.json, faults[0])
	}
	if len(faults) == 0 {
		return d, nil
	}
	out := make([]source.Fault, len(faults))
	for i, f := range faults {
		out[i] = source.Fault{Pos: d.place(f.off), Msg: f.msg, Hint: f.hint}
	}
	if d.Root == nil {
		return nil, out
	}
	return d, out
}

// makeJSON takes over the tree of a text in JSON that was scanned, if it is valid: an object or, if key is not empty, the list of it.
func (d *Doc) makeJSON(s *scanner, key string) []textFault {
	if !json.Valid([]byte(s.text)) {
		return []textFault{syntaxFault(s.text)}
	}
	switch v := s.made.(type) {
	case map[string]any:
		d.Root = v
		return s.twice
	case []any:
		if key != "" {
			d.Root, d.list = map[string]any{key: v}, key
			return s.twice
		}
	}
	hint := `want an object, as in {"services": []}`
	if key != "" {
		hint = "want a list, or an object with the key " + source.Excerpt(key)
	}
	return []textFault{{off: s.start, msg: "the file is " + describe(s.made), hint: hint}}
}

// check scans the text, and finds what the parsers must not see.
func (d *Doc) check() (*scanner, []textFault) {
	if off := invalidUTF8(d.data); off >= 0 {
		return nil, []textFault{{off: off, msg: fmt.Sprintf("byte 0x%02x is not UTF-8", d.data[off])}}
	}
	s := scan(d.data, d.json, nil)
	if s.over != nil {
		return nil, []textFault{*s.over}
	}
	return s, nil
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(s string) int {
	if utf8.ValidString(s) {
		return -1
	}
	for i, r := range s {
		if r != utf8.RuneError {
			continue
		}
		if _, size := utf8.DecodeRuneInString(s[i:]); size == 1 {
			return i
		}
	}
	return -1
}

// Positions returns where the values at paths stand. A path that leads nowhere has the
// position of the last value on the way.
func (d *Doc) Positions(paths []source.Path) []source.Position {
	offs := make([]int, len(paths))
	for i, n := range d.nodes(paths) {
		offs[i] = n.val
	}
	return d.places(offs)
}

// Elements returns where each element of a list at the top stands.
func (d *Doc) Elements(key string) []source.Position {
	list, _ := listAt(d.data, d.json, key)
	pos := make([]source.Position, len(list.elems))
	for i, off := range list.elems {
		pos[i] = d.place(off)
	}
	return pos
}

// Spans returns where the elements of a list at the top of a text in JSON begin and
// end. In one that is not valid they may be anywhere.
func Spans(text, key string) (begins, ends []int) {
	list, ok := listAt(text, true, key)
	if !ok {
		return nil, nil
	}
	return list.elems, list.ends
}

// listAt finds all elements of a list at the top of a text, and reports whether the text was read to its end.
func listAt(text string, isJSON bool, key string) (list *node, ok bool) {
	root := &node{}
	list = root.want(source.Step{Key: key, Index: -1})
	list.all = true
	return list, !scan(text, isJSON, root).stopped()
}

// nodes returns the node at the end of each path, or the last on the way. The
// text is read once more for them: a tree of all places in it would be larger
// than the tree of its values.
func (d *Doc) nodes(paths []source.Path) []*node {
	root := &node{}
	if d.list != "" {
		paths = below(d.list, paths)
	}
	for _, path := range paths {
		n := root
		for _, s := range path {
			n = n.want(s)
		}
	}
	scan(d.data, d.json, root)
	out := make([]*node, len(paths))
	for i, path := range paths {
		out[i] = root.last(path)
	}
	return out
}

// places turns offsets in any order into positions, and goes through the text once for all of them.
func (d *Doc) places(offs []int) []source.Position {
	order, pos := make([]int, len(offs)), make([]source.Position, len(offs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(offs[a], offs[b]) })
	for _, i := range order {
		pos[i] = d.place(offs[i])
	}
	return pos
}

// place turns an offset into a position. It counts lines from where it was last asked, which is mostly near: an index of all lines
// could be many times the text.
func (d *Doc) place(off int) source.Position {
	off = min(max(off, 0), len(d.data))
	between := d.data[min(d.at, off):max(d.at, off)]
	if n := strings.Count(between, "\n"); n > 0 {
		if off < d.at {
			n = -n
		}
		d.lines, d.start = d.lines+n, strings.LastIndexByte(d.data[:off], '\n')+1
	}
	d.at = off
	return source.Position{File: d.file, Line: d.lines + 1, Col: off - d.start + 1}
}

// below returns what of paths is below a key, the others as the path of the whole text.
func below(key string, paths []source.Path) []source.Path {
	out := make([]source.Path, len(paths))
	for i, p := range paths {
		if p.Under(source.At(key)) {
			out[i] = p[1:]
		}
	}
	return out
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
