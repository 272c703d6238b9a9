// Package decode turns TOML and JSON into one tree of values, knows where in
// the text each of them stands, and reads trees by tables of keys.
//
// A tree is made of map[string]any, []any, []map[string]any (what TOML makes of
// [[headers]]), string, int64, float64, bool, nil and the dates of TOML.
package decode

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"svcproxy/source"
)

const (
	// MaxSize is the longest text that is read, in bytes. 10,000 services of 10
	// endpoints are about 5 MiB when each endpoint is a table of its own.
	MaxSize = 16 << 20

	// MaxDepth is the deepest nesting that is read, counting every key and every
	// bracket on the way. Our files need ten; both parsers recurse, and Go ends a
	// program whose stack overflows.
	MaxDepth = 32
)

// A Doc is a text that has been decoded.
type Doc struct {
	Root map[string]any

	file    string
	data    string // without byte order mark
	json    bool
	outline *node // the root and two levels below it
	index   *node // all levels; nil until a position is asked for
	lines   []int // offset of the start of each line; nil until a position is asked for
}

// TOML decodes a text in TOML. The Doc is nil when the text is at fault.
func TOML(file string, data []byte) (*Doc, []source.Fault) {
	return decode(&Doc{file: file}, data, parseTOML)
}

// JSON decodes a text in JSON, whose root must be an object. The Doc is nil
// when the text is at fault. A key that is in an object twice is a fault too, but
// leaves a Doc, so that more faults can be found.
func JSON(file string, data []byte) (*Doc, []source.Fault) {
	return decode(&Doc{file: file, json: true}, data, parseJSON)
}

// A textFault is a fault at an offset of the text.
type textFault struct {
	off       int
	msg, hint string
}

func decode(d *Doc, data []byte, parse func(string) (map[string]any, []textFault)) (*Doc, []source.Fault) {
	if len(data) > MaxSize {
		return nil, []source.Fault{{
			Pos: source.Position{File: d.file},
			Msg: fmt.Sprintf("the file has %d bytes; the most that is read is %d", len(data), MaxSize),
		}}
	}
	d.data = strings.TrimPrefix(string(data), "\ufeff")
	faults := d.check()
	if faults == nil {
		d.Root, faults = parse(d.data)
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

// check finds what the parsers must not see, and makes the outline.
func (d *Doc) check() []textFault {
	if off := invalidUTF8(d.data); off >= 0 {
		return []textFault{{off: off, msg: fmt.Sprintf("byte 0x%02x is not UTF-8", d.data[off])}}
	}
	s := scan(d.data, d.json, 2)
	if s.tooDeep {
		return []textFault{{off: s.deepAt, msg: fmt.Sprintf("nested deeper than %d levels", MaxDepth)}}
	}
	d.outline = s.root
	return nil
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

// Pos returns where the value at path stands. A path that leads nowhere has the
// position of the last value on the way.
func (d *Doc) Pos(path source.Path) source.Position {
	n, _ := d.find(path)
	return d.place(n.val)
}

// KeyPos returns where the key at the end of path stands.
func (d *Doc) KeyPos(path source.Path) source.Position {
	n, found := d.find(path)
	if !found {
		return d.place(n.val)
	}
	return d.place(n.key)
}

// Elements returns where each element of a list at the top stands. Unlike Pos it
// costs next to nothing.
func (d *Doc) Elements(key string) []source.Position {
	n := d.outline.keys[key]
	if n == nil {
		return nil
	}
	pos := make([]source.Position, len(n.elems))
	line, start, done := 1, 0, 0
	for i, e := range n.elems {
		// Elements come in the order of the text, so each line is counted once.
		if text := d.data[done:e.val]; len(text) > 0 {
			line += strings.Count(text, "\n")
			if nl := strings.LastIndexByte(text, '\n'); nl >= 0 {
				start = done + nl + 1
			}
		}
		done = e.val
		pos[i] = source.Position{File: d.file, Line: line, Col: e.val - start + 1}
	}
	return pos
}

// find follows path as far as it leads.
func (d *Doc) find(path source.Path) (n *node, found bool) {
	if d.index == nil {
		d.index = scan(d.data, d.json, MaxDepth).root
	}
	n = d.index
	for _, s := range path {
		next := n.step(s)
		if next == nil {
			return n, false
		}
		n = next
	}
	return n, true
}

// place turns an offset into a position.
func (d *Doc) place(off int) source.Position {
	if d.lines == nil {
		d.lines = lineStarts(d.data)
	}
	off = min(max(off, 0), len(d.data))
	line, found := slices.BinarySearch(d.lines, off)
	if !found {
		line-- // off lies within the line before
	}
	return source.Position{File: d.file, Line: line + 1, Col: off - d.lines[line] + 1}
}

func lineStarts(text string) []int {
	starts := []int{0}
	for i := range len(text) {
		if text[i] == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}
