package decode

import (
	"encoding/json"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A node is the place in the text of a value that was asked for, or of one on the
// way to it.
type node struct {
	key, val int // offsets; those of a [header] are the same
	found    bool
	kids     map[source.Step]*node // that were asked for
	all      bool                  // keep where all elements begin and end
	elems    []int
	ends     []int
	count    int   // of elements so far
	current  *node // the last element; nil if nobody asked for it
}

// want returns the child that s names, and asks for it.
func (n *node) want(s source.Step) *node {
	if n.kids == nil {
		n.kids = map[source.Step]*node{}
	}
	if n.kids[s] == nil {
		n.kids[s] = &node{}
	}
	return n.kids[s]
}

// last follows path as far as the text has it.
func (n *node) last(path source.Path) *node {
	for _, s := range path {
		next := n.kids[s]
		if next == nil || !next.found {
			break
		}
		n = next
	}
	return n
}

// A scanner finds where keys and values begin. It reads JSON too, which looks
// like the inside of TOML with ":" for "=", and of that it also makes the values.
// Libraries say whether a text is valid; the scanner follows a valid one exactly,
// and an invalid one up to where it stops being valid, as far as nesting goes. What
// only TOML has stands at the end of this file.
type scanner struct {
	text  string
	json  bool
	i     int
	path  string // of the key being read, in its table
	root  *node  // with what is asked for; nil: nothing
	makes bool   // values, of JSON

	start int         // of a text in JSON, behind white space
	made  any         // of it
	twice []textFault // keys that are in their object already

	dots  map[string]bool // tables that keys with dots have made, by their paths in this table; nil: none
	again *textFault      // one of them has a value too

	size
}

// scan reads a text, and finds all places that are asked for below root. With a
// nil root it measures the text, and makes what one in JSON says.
func scan(text string, isJSON bool, root *node) *scanner {
	s := &scanner{text: text, json: isJSON, root: root, makes: isJSON && root == nil, size: size{bytes: len(text), isTop: true}}
	if root == nil {
		s.top = map[string]bool{}
	}
	if isJSON {
		s.blank()
		s.start = s.i
		s.made = s.value(s.root)
		return s
	}
	table := s.root
	for s.blank(); s.more(); s.blank() {
		if s.text[s.i] == '[' {
			table = s.header()
		} else {
			s.pair(table)
		}
	}
	return s
}

// child returns the node of a key below n, or nil if nobody asked for it.
func (s *scanner) child(n *node, raw string, off int) *node {
	s.count(s.i, 1, 0)
	if n == nil || len(n.kids) == 0 {
		return nil
	}
	c := n.kids[source.Step{Key: s.unquote(raw), Index: -1}]
	if c != nil && !c.found {
		c.found, c.key, c.val = true, off, off
	}
	return c
}

// elem returns the next element of n, or nil if nobody asked for it.
func (s *scanner) elem(n *node, off int) *node {
	s.count(s.i, 1, 0)
	if n == nil {
		return nil
	}
	if n.all {
		n.elems = append(n.elems, off)
	}
	c := n.kids[source.Step{Index: n.count}]
	n.count++
	n.current = c
	if c != nil {
		c.found, c.key, c.val = true, off, off
	}
	return c
}

// more reports whether there is text left to read.
func (s *scanner) more() bool { return s.i < len(s.text) && !s.stopped() }

// at reports whether the next byte is one of a set.
func (s *scanner) at(set string) bool {
	return s.i < len(s.text) && strings.IndexByte(set, s.text[s.i]) >= 0
}

// space skips white space within a line, in JSON that of several.
func (s *scanner) space() {
	if s.json {
		s.blank()
	}
	for s.at(" \t\r") {
		s.i++
	}
}

// blank skips white space, new lines, comments and commas.
func (s *scanner) blank() {
	for s.i < len(s.text) {
		switch s.text[s.i] {
		case ' ', '\t', '\r', '\n', ',':
			s.i++
		case '#':
			s.line()
		default:
			return
		}
	}
}

// line skips to the end of the line.
func (s *scanner) line() {
	if nl := strings.IndexByte(s.text[s.i:], '\n'); nl >= 0 {
		s.i += nl
	} else {
		s.i = len(s.text)
	}
}

// pair reads key = value below table, and returns the last part of the key.
func (s *scanner) pair(table *node) (raw string, v any) {
	start, depth := s.i, s.depth
	n, raw := s.dotted(table)
	if s.dots[s.path] && s.again == nil { // as in a.b = 1, a = 2: the parser of TOML passes over the second
		s.again = &textFault{start, "this key is a table already, by a key with a dot", "leave one of them out"}
	}
	if s.at("=:") {
		s.i++
		s.space()
		v = s.value(n)
	}
	if s.i == start {
		s.i++ // not valid, but go on
	}
	s.depth = depth
	return raw, v
}

// dotted reads a key of one or more parts and returns the node it names, and the last part.
func (s *scanner) dotted(n *node) (named *node, raw string) {
	s.path = ""
	for first := true; ; first = false {
		s.space()
		if n != nil && n.count > 0 {
			n = n.current // a table within the last [[element]]
		}
		start := s.i
		s.key()
		raw = s.text[start:s.i]
		if first {
			s.wider(s.i, raw)
		}
		n = s.child(n, raw, start)
		s.space()
		s.deeper(s.i)
		more := s.at(".") && !s.stopped()
		if !s.json && (more || s.dots != nil) {
			s.path += "." + strconv.Quote(s.unquote(raw))
		}
		if !more {
			return n, raw
		}
		s.count(s.i, 0, 1)
		s.i++
		if s.dots == nil {
			s.dots = map[string]bool{}
		}
		s.dots[s.path] = true
	}
}

// key reads one part of a key.
func (s *scanner) key() {
	if s.at(`"'`) {
		s.str()
		return
	}
	for s.i < len(s.text) && !s.at(".=:[]{},\"'# \t\r\n") {
		s.i++
	}
}

// unquote returns what a key means; each language has its own escapes.
func (s *scanner) unquote(raw string) string {
	if raw == "" || raw[0] != '"' && raw[0] != '\'' {
		return raw
	}
	if len(raw) < 2 || !strings.Contains(raw, `\`) || raw[0] == '\'' {
		return strings.Trim(raw, raw[:1])
	}
	// What is wrong with a key is for the parser to report.
	if s.json {
		var key string
		_ = json.Unmarshal([]byte(raw), &key)
		return key
	}
	tree, _ := parseTOML("key=" + raw)
	key, _ := tree["key"].(string)
	return key
}

// value reads a value whose place is n, and makes it if asked to.
func (s *scanner) value(n *node) any {
	if n != nil {
		n.val = s.i
	}
	start := s.i
	switch {
	case s.at(`"'`):
		s.str()
		if s.makes {
			return s.unquote(s.text[start:s.i])
		}
	case s.at("["):
		return s.list(n)
	case s.at("{"):
		return s.table(n)
	default:
		for s.i < len(s.text) && !s.at(",]}#\n") {
			s.i++
		}
		if s.makes {
			return word(strings.TrimRight(s.text[start:s.i], " \t\r"))
		}
	}
	return nil
}

func (s *scanner) list(n *node) any {
	list := []any{}
	s.nest(']', func() {
		v := s.value(s.elem(n, s.i))
		if s.makes {
			list = append(list, v)
		}
		if n != nil && n.all {
			n.ends = append(n.ends, s.i)
		}
	})
	return list
}

func (s *scanner) table(n *node) any {
	s.count(s.i, 0, 1)
	outside, keys, isTop := s.dots, s.keys, s.isTop
	s.dots, s.keys, s.isTop = nil, 0, s.json && s.depth == 0
	var object map[string]any
	if s.makes {
		object = map[string]any{}
	}
	s.nest('}', func() {
		start := s.i
		raw, v := s.pair(n)
		if s.makes {
			s.member(object, s.unquote(raw), v, start)
		}
	})
	s.dots, s.keys, s.isTop = outside, keys, isTop
	return object
}

// nest reads a list or a table up to its closing bracket.
func (s *scanner) nest(closing byte, item func()) {
	s.deeper(s.i)
	s.i++
	for s.blank(); s.more() && s.text[s.i] != closing; s.blank() {
		before := s.i
		item()
		if s.i == before {
			s.i++ // not valid, but go on
		}
	}
	if !s.stopped() {
		s.i = min(s.i+1, len(s.text))
	}
	s.depth--
}

// str reads a string of any kind, quotes included.
func (s *scanner) str() {
	quote := s.text[s.i]
	for _, triple := range []string{`"""`, "'''"} {
		if !s.json && strings.HasPrefix(s.text[s.i:], triple) {
			s.i += 3
			s.long(triple)
			return
		}
	}
	for s.i++; s.i < len(s.text); s.i++ {
		switch c := s.text[s.i]; {
		case c == quote:
			s.i++
			return
		case c == '\n': // a string on one line ends there even when its quote is missing
			return
		case c == '\\' && quote == '"':
			s.i++
		}
	}
	s.i = len(s.text)
}

// member adds to an object in JSON. Unlike encoding/json it sees keys that are there twice.
func (s *scanner) member(object map[string]any, key string, v any, at int) {
	if _, twice := object[key]; twice {
		switch len(s.twice) {
		case maxFaults:
		case maxFaults - 1:
			s.twice = append(s.twice, textFault{off: at, msg: "more keys are in their object twice"})
		default:
			s.twice = append(s.twice, textFault{off: at, msg: "key " + source.Excerpt(key) + " is already in this object"})
		}
	}
	object[key] = v
}

// word returns the value of what is not in quotes or brackets, in JSON. It keeps the
// difference between integers and other numbers that TOML makes: 80 is an int64;
// 80.0, 8e1 and what is too large for one are a float64.
func word(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	case "null":
		return nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range: infinite, which no key takes
	return f
}

// header reads [a.b] or [[a.b]] and returns the table that it opens.
func (s *scanner) header() *node {
	start := s.i
	s.i++
	s.depth = 0
	list := s.at("[")
	if list {
		s.i++
	}
	s.keys, s.isTop = 0, true
	n, _ := s.dotted(s.root)
	s.keys, s.isTop = 0, false
	s.count(s.i, 0, 1)
	s.dots = nil
	if n != nil && (!list || n.count == 0) {
		n.key, n.val = start, start
	}
	if list {
		n = s.elem(n, start)
	}
	s.line()
	return n
}

// long reads a multi-line string from behind its opening quotes.
func (s *scanner) long(triple string) {
	for s.i < len(s.text) && !strings.HasPrefix(s.text[s.i:], triple) {
		if s.text[s.i] == '\\' && triple[0] == '"' {
			s.i++
		}
		s.i++
	}
	s.i = min(s.i+3, len(s.text))
	for s.at(triple[:1]) { // up to two more quotes belong to the string
		s.i++
	}
}
