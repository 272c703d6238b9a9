// Package decode turns TOML and JSON into one tree of values, knows where in
// the text each of them stands, and reads trees by tables of keys.
//
// A tree is made of map[string]any, []any, []map[string]any (what TOML makes of
// [[headers]]), string, int64, float64, bool, nil and the dates of TOML.
package decode

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
)

// A Doc is a text that has been decoded.
type Doc struct {
	Root map[string]any

	file  string
	data  string // without byte order mark
	json  bool
	list  string // the key in Root of a text that is a list, without a key; empty: it is none
	marks []mark // of lines; nil until a position is asked for
}

// TOML decodes a text in TOML. The Doc is nil when the text is at fault.
func TOML(file string, data []byte) (*Doc, []source.Fault) {
	return decode(&Doc{file: file}, data, func(s *scanner) (map[string]any, []textFault) {
		tree, faults := parseTOML(s.text)
		if tree != nil && s.again != nil {
			return nil, []textFault{*s.again}
		}
		return tree, faults
	})
}

// JSON decodes a text in JSON, whose root must be an object. The Doc is nil
// when the text is at fault. A key that is in an object twice is a fault too, but
// leaves a Doc, so that more faults can be found.
func JSON(file string, data []byte) (*Doc, []source.Fault) {
	return decode(&Doc{file: file, json: true}, data, treeOf)
}

// JSONList decodes a text in JSON as JSON does, and also one that is no more than a list:
// that is read as the one key of an object.
func JSONList(file string, data []byte, key string) (*Doc, []source.Fault) {
	d := &Doc{file: file, json: true}
	return decode(d, data, func(s *scanner) (map[string]any, []textFault) {
		tree, faults := treeOf(s)
		list, ok := s.made.([]any)
		switch {
		case tree != nil || len(faults) == 0 || faults[0].hint != wantObject:
			return tree, faults
		case !ok:
			faults[0].hint = "want a list, or an object with the key " + source.Excerpt(key)
			return nil, faults
		}
		d.list = key
		return map[string]any{key: list}, s.twice
	})
}

func decode(d *Doc, data []byte, parse func(*scanner) (map[string]any, []textFault)) (*Doc, []source.Fault) {
	d.data = strings.TrimPrefix(string(data), "\ufeff")
	s, faults := d.check()
	if faults == nil {
		d.Root, faults = parse(s)
		if d.Root == nil && len(faults) == 1 {
			faults[0] = guess(d.data, d.json, faults[0])
		}
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

// treeOf returns the tree of a text in JSON that was scanned, if it is valid.
func treeOf(s *scanner) (map[string]any, []textFault) {
	if !json.Valid([]byte(s.text)) {
		return nil, []textFault{syntaxFault(s.text)}
	}
	tree, ok := s.made.(map[string]any)
	if !ok {
		return nil, []textFault{{off: s.start, msg: "the file is " + describe(s.made), hint: wantObject}}
	}
	return tree, s.twice
}

const wantObject = `want an object, as in {"services": []}`

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
	out := make([]source.Position, len(paths))
	for i, n := range d.nodes(paths) {
		out[i] = d.place(n.val)
	}
	return out
}

// Elements returns where each element of a list at the top stands.
func (d *Doc) Elements(key string) []source.Position {
	list, root := &node{all: true}, &node{}
	root.add(source.Step{Key: key, Index: -1}, list)
	scan(d.data, d.json, root)
	pos := make([]source.Position, len(list.elems))
	for i, off := range list.elems {
		pos[i] = d.place(off)
	}
	return pos
}

// Spans returns where the elements of a list at the top of a text in JSON begin and
// end. In one that is not valid they may be anywhere.
func Spans(text, key string) (begins, ends []int) {
	list, root := &node{all: true}, &node{}
	root.add(source.Step{Key: key, Index: -1}, list)
	if s := scan(text, true, root); s.stopped() {
		return nil, nil
	}
	return list.elems, list.ends
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

// A mark says in which line a block of the text begins, and where that line does.
type mark struct{ line, start int }

// blockSize is how much text there is between two marks, in bytes. Marks are few
// where an index of all lines could be many times the text.
const blockSize = 4096

// place turns an offset into a position.
func (d *Doc) place(off int) source.Position {
	if d.marks == nil {
		d.marks = marksOf(d.data)
	}
	off = min(max(off, 0), len(d.data))
	block := off / blockSize
	m := d.marks[block].to(d.data, block*blockSize, off)
	return source.Position{File: d.file, Line: m.line, Col: off - m.start + 1}
}

func marksOf(text string) []mark {
	marks := make([]mark, 1, len(text)/blockSize+1)
	marks[0].line = 1
	for off := blockSize; off <= len(text); off += blockSize {
		marks = append(marks, marks[len(marks)-1].to(text, off-blockSize, off))
	}
	return marks
}

// to returns the mark of end, where m is that of begin.
func (m mark) to(text string, begin, end int) mark {
	between := text[begin:end]
	if nl := strings.LastIndexByte(between, '\n'); nl >= 0 {
		return mark{m.line + strings.Count(between, "\n"), begin + nl + 1}
	}
	return m
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
