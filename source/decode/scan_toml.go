package decode

import "strings"

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
