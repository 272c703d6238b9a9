package decode

import (
	"encoding/json"
	"strings"

	"svcproxy/source"
)

// A node is a value's place in the text.
type node struct {
	key, val int // offsets; those of a [header] are the same
	depth    int
	keys     map[string]*node
	elems    []*node
}

// step returns the child that s names, or nil.
func (n *node) step(s source.Step) *node {
	if s.Index < 0 {
		return n.keys[s.Key]
	}
	if s.Index < len(n.elems) {
		return n.elems[s.Index]
	}
	return nil
}

// A scanner finds where keys and values begin. It reads JSON too, which looks
// like the inside of TOML with ":" for "=". The parsers say whether a text is
// valid; the scanner follows a valid one exactly, and an invalid one up to where
// it stops being valid, as far as nesting goes.
type scanner struct {
	text    string
	json    bool
	i       int
	depth   int // nesting of the value being read
	keep    int // levels that get nodes
	root    *node
	tooDeep bool
	deepAt  int // where it became too deep
}

// scan finds all places down to keep levels below the root.
func scan(text string, isJSON bool, keep int) *scanner {
	s := &scanner{text: text, json: isJSON, keep: keep, root: &node{}}
	if isJSON {
		s.blank()
		s.value(s.root)
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

// child returns the node of a key below n, or nil below the levels kept.
func (s *scanner) child(n *node, key string, off int) *node {
	if n == nil || n.depth == s.keep {
		return nil
	}
	c := n.keys[key]
	if c == nil {
		c = &node{key: off, val: off, depth: n.depth + 1}
		if n.keys == nil {
			n.keys = map[string]*node{}
		}
		n.keys[key] = c
	}
	return c
}

// elem returns a new last element of n, or nil below the levels kept.
func (s *scanner) elem(n *node, off int) *node {
	if n == nil || n.depth == s.keep {
		return nil
	}
	c := &node{key: off, val: off, depth: n.depth + 1}
	n.elems = append(n.elems, c)
	return c
}

// more tells whether there is text left to read.
func (s *scanner) more() bool { return s.i < len(s.text) && !s.tooDeep }

// at tells whether the next byte is one of these.
func (s *scanner) at(any string) bool {
	return s.i < len(s.text) && strings.IndexByte(any, s.text[s.i]) >= 0
}

// space skips white space within a line.
func (s *scanner) space() {
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

// header reads [a.b] or [[a.b]] and returns the table that it opens.
func (s *scanner) header() *node {
	start := s.i
	s.i++
	s.depth = 0
	list := s.at("[")
	if list {
		s.i++
	}
	n := s.dotted(s.root)
	if n != nil && list {
		if len(n.elems) == 0 {
			n.key, n.val = start, start
		}
		n = s.elem(n, start)
	} else if n != nil {
		n.key, n.val = start, start
	}
	s.line()
	return n
}

// pair reads key = value below table.
func (s *scanner) pair(table *node) {
	start, depth := s.i, s.depth
	n := s.dotted(table)
	if s.at("=:") {
		s.i++
		s.space()
		if s.json {
			s.blank()
		}
		s.value(n)
	}
	if s.i == start {
		s.i++ // not valid, but go on
	}
	s.depth = depth
}

// dotted reads a key of one or more parts and returns the node it names.
func (s *scanner) dotted(n *node) *node {
	for {
		s.space()
		if s.json {
			s.blank()
		}
		if n != nil && len(n.elems) > 0 {
			n = n.elems[len(n.elems)-1] // a table within the last [[element]]
		}
		start := s.i
		key := s.key()
		n = s.child(n, key, start)
		s.space()
		if s.json {
			s.blank()
		}
		s.deeper()
		if !s.at(".") || s.tooDeep {
			return n
		}
		s.i++
	}
}

// key reads one part of a key.
func (s *scanner) key() string {
	start := s.i
	if s.at(`"'`) {
		s.str()
		return s.unquote(s.text[start:s.i])
	}
	for s.i < len(s.text) && !s.at(".=:[]{},\"'# \t\r\n") {
		s.i++
	}
	return s.text[start:s.i]
}

// unquote returns what a quoted key means; each language has its own escapes.
func (s *scanner) unquote(raw string) string {
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

// value reads a value whose place is n.
func (s *scanner) value(n *node) {
	if n != nil {
		n.val = s.i
	}
	switch {
	case s.at(`"'`):
		s.str()
	case s.at("["):
		s.nest(']', func() {
			s.value(s.elem(n, s.i))
		})
	case s.at("{"):
		s.nest('}', func() { s.pair(n) })
	default:
		for s.i < len(s.text) && !s.at(",]}#\n") {
			s.i++
		}
	}
}

// nest reads a list or a table up to its closing bracket.
func (s *scanner) nest(closing byte, item func()) {
	s.deeper()
	s.i++
	for s.blank(); s.more() && s.text[s.i] != closing; s.blank() {
		before := s.i
		item()
		if s.i == before {
			s.i++ // not valid, but go on
		}
	}
	if !s.tooDeep {
		s.i = min(s.i+1, len(s.text))
	}
	s.depth--
}

// deeper counts one more level of nesting.
func (s *scanner) deeper() {
	if s.depth++; s.depth > MaxDepth && !s.tooDeep {
		s.tooDeep, s.deepAt = true, s.i
	}
}

// str reads a string of any kind, quotes included.
func (s *scanner) str() {
	quote := s.text[s.i : s.i+1]
	end := quote + "\n" // a string on one line ends there even when its quote is missing
	if triple := strings.Repeat(quote, 3); !s.json && strings.HasPrefix(s.text[s.i:], triple) {
		s.i += 3
		s.long(triple)
		return
	}
	s.i++
	for s.i < len(s.text) && !s.at(end) {
		s.i++
		if s.text[s.i-1] == '\\' && quote == `"` {
			s.i++
		}
	}
	if s.at(quote) {
		s.i++
	}
	s.i = min(s.i, len(s.text))
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
