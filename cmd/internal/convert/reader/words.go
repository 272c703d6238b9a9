package reader

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// Words are those of a line or a statement.
type Words []string

// Arg returns a word by its number; empty: there is none.
func (w Words) Arg(i int) string {
	if i < len(w) {
		return w[i]
	}
	return ""
}

// errQuote says that a line ends in quotes.
var errQuote = errors.New("a quote has no end")

// A splitter takes up the words of a line.
type splitter struct {
	words []string
	word  strings.Builder
	begun bool // the word; one in quotes may be empty
}

// add adds to the word.
func (s *splitter) add(text string) {
	s.word.WriteString(text)
	s.begun = true
}

// end ends the word, if one has begun.
func (s *splitter) end() {
	if s.begun {
		s.words = append(s.words, s.word.String())
	}
	s.word.Reset()
	s.begun = false
}

// PortOf reads a port; without one it is 0.
func PortOf(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s is no port", source.Excerpt(text))
	}
	return uint16(n), nil
}

// MaxDepth bounds how deep something may be nested: files that include files, definitions that use definitions, blocks, lists.
const MaxDepth = 32

// QuotedWords splits a line at blanks, where it has comments up to a #. Quotes of either kind and a backslash take what
// they are about as it is.
func QuotedWords(line string, comments bool) ([]string, error) {
	var s splitter
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && c == '#' && comments:
			line = line[:i]
		case c == '\\' && quote != '\'' && i+1 < len(line):
			i++
			s.add(unescaped(line[i]))
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, s.begun = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			s.end()
		default:
			s.add(line[i : i+1])
		}
	}
	s.end()
	if quote != 0 {
		return nil, errQuote
	}
	return s.words, nil
}

// unescaped returns what a backslash and a letter mean.
func unescaped(c byte) string {
	switch c {
	case 'n':
		return "\n"
	case 'r':
		return "\r"
	case 't':
		return "\t"
	}
	return string(rune(c))
}

// MaxPorts is how many ports of a range become ports of a service.
const MaxPorts = 100

// PortRange reads a port, or all from one to another.
func PortRange(text, sign string) (ports []uint16, err error) {
	from, to, isRange := strings.Cut(text, sign)
	first, err := PortOf(from)
	if err != nil || first == 0 {
		return nil, fmt.Errorf("%s is no port", source.Excerpt(text))
	}
	last := first
	if isRange {
		if last, err = PortOf(to); err != nil || last < first {
			return nil, fmt.Errorf("%s is no range of ports", source.Excerpt(text))
		}
	}
	if int(last)-int(first) >= MaxPorts {
		return nil, fmt.Errorf("the range %s has more than %d ports; write them as you need them", text, MaxPorts)
	}
	for n := int(first); n <= int(last); n++ {
		ports = append(ports, uint16(n))
	}
	return ports, nil
}

// StatusRange reads a status, or all from one to another.
func StatusRange(text string) (source.StatusRange, bool) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return source.StatusRange{First: uint16(a), Last: uint16(b)}, err == nil && err2 == nil && a >= 100 && b <= 599 && a <= b
}

// BracedWords splits a line at blanks. What is in double quotes is one word, with what a backslash
// is before of taken as it is. Braces are words, except in quotes.
func BracedWords(line string) ([]string, error) {
	var s splitter
	quoted := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			if line[i] != '"' && line[i] != '\\' {
				s.add(`\`)
			}
			s.add(line[i : i+1])
		case c == '"':
			quoted, s.begun = !quoted, true
		case !quoted && (c == ' ' || c == '\t'):
			s.end()
		case !quoted && (c == '{' || c == '}') && (i == 0 || line[i-1] != '$') && !strings.Contains(s.word.String(), "${"):
			s.end()
			s.words = append(s.words, string(c))
		default:
			s.add(line[i : i+1])
		}
	}
	if quoted {
		return nil, errQuote
	}
	s.end()
	return s.words, nil
}

// CommandWords splits a command line at blanks that are in no quotes of either kind.
func CommandWords(line string) []string {
	var s splitter
	quote := rune(0)
	for _, c := range line + " " {
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, s.begun = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			s.end()
		default:
			s.add(string(c))
		}
	}
	return s.words
}
