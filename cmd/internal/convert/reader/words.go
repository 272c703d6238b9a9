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

// A Syntax describes how a program splits lines into words.
type Syntax struct {
	Quotes  string // each begins a word that may have blanks, and ends it
	Comment bool   // up to the end of the line, from a # on
	Escapes bool   // a backslash is before a blank, a quote, # or another one, and \n, \r, \t and \xNN mean what they do in C
	Braces  bool   // each is a word, except in quotes and in ${NAME}; in quotes a backslash is before \" and \\ only
	Open    bool   // quotes need no end
}

// The syntax of haproxy.cfg, iptables-save, keepalived.conf, its lines with scripts, and the command lines in these.
var (
	OfHAProxy    = Syntax{Quotes: `"'`, Comment: true, Escapes: true}
	OfIPTables   = Syntax{Quotes: `"'`, Escapes: true}
	OfKeepalived = Syntax{Quotes: `"`, Braces: true}
	OfScripts    = Syntax{Quotes: `"'`, Braces: true}
	OfCommands   = Syntax{Quotes: `"'`, Open: true}
)

// Split splits a line at blanks that are in no quotes.
func (x Syntax) Split(line string) ([]string, error) {
	var s splitter
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		inBraces := quote == 0 && x.Braces && (c == '{' || c == '}') && (i == 0 || line[i-1] != '$') && !strings.Contains(s.word.String(), "${")
		switch {
		case quote == 0 && c == '#' && x.Comment:
			line = line[:i]
		case c == '\\' && i+1 < len(line) && x.Escapes && quote != '\'':
			text, length := unescaped(line[i+1:], quote)
			s.add(text)
			i += length
		case c == '\\' && i+1 < len(line) && x.Braces && quote != 0:
			i++
			if line[i] != '"' && line[i] != '\\' {
				s.add(`\`)
			}
			s.add(line[i : i+1])
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && strings.IndexByte(x.Quotes, c) >= 0:
			quote, s.begun = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			s.end()
		case inBraces:
			s.end()
			s.words = append(s.words, line[i:i+1])
		default:
			s.add(line[i : i+1])
		}
	}
	if quote != 0 && !x.Open {
		return nil, errQuote
	}
	if quote == 0 || !x.Open { // a word in quotes without an end is none
		s.end()
	}
	return s.words, nil
}

// unescaped returns what a backslash before a text means, and how much of the text belongs to it. Before all else it stays,
// as in a regular expression.
func unescaped(text string, quote byte) (means string, length int) {
	c := text[0]
	switch i := strings.IndexByte("nrt", c); {
	case i >= 0:
		return "\n\r\t"[i : i+1], 1
	case strings.IndexByte("\\ #\"'", c) >= 0 || c == '$' && quote == '"':
		return text[:1], 1
	case c == 'x' && len(text) > 2:
		if n, err := strconv.ParseUint(text[1:3], 16, 8); err == nil {
			return string([]byte{byte(n)}), 3
		}
	}
	return `\`, 0
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
