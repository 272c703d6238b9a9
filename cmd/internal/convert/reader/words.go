package reader

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Line is a line of the input, or a statement, in words.
type Line struct {
	At    Position
	Words []string
}

// Arg returns a word by its number; empty: there is none.
func (l Line) Arg(i int) string {
	if i < len(l.Words) {
		return l.Words[i]
	}
	return ""
}

// Is reports whether a line begins with these words.
func (l Line) Is(words ...string) bool {
	return len(l.Words) >= len(words) && slices.Equal(l.Words[:len(words)], words)
}

// Text returns the words from one on, for messages.
func (l Line) Text(from int) string {
	return source.Excerpt(strings.Join(l.Words[min(from, len(l.Words)):], " "))
}

// WordSet returns the set of the words of a text.
func WordSet(text string) map[string]bool {
	out := map[string]bool{}
	for _, word := range strings.Fields(text) {
		out[word] = true
	}
	return out
}

// A Left says why statements are left out, and what to do about it.
type Left struct{ Why, Hint string }

// Of returns what a note says of something that is left out.
func (l Left) Of(what string) string {
	if l.Why == "" {
		return what + " is left out"
	}
	return what + " is left out: " + l.Why
}

// PortOf reads a port; without one it is 0.
func PortOf(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if text != "" && err != nil {
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
func (x Syntax) Split(line string) (words []string, err error) {
	if !strings.ContainsAny(line, `"'\#{}`) {
		return strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' }), nil
	}
	word := make([]byte, 0, 64)
	begun, quote := false, byte(0) // a word in quotes may be empty
	end := func() {
		if begun {
			words = append(words, string(word))
		}
		word, begun = word[:0], false
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		length := 1 // of what means text
		text := line[i : i+1]
		switch {
		case quote == 0 && c == '#' && x.Comment:
			line = line[:i]
			continue
		case c == '\\' && i+1 < len(line) && x.Escapes && quote != '\'':
			text, length = unescaped(line[i+1:], quote)
			length++
		case c == '\\' && i+1 < len(line) && x.Braces && quote != 0:
			text, length = line[i:i+2], 2
			if text[1] == '"' || text[1] == '\\' {
				text = text[1:]
			}
		case quote != 0 && c == quote:
			quote, text = 0, ""
		case quote == 0 && strings.IndexByte(x.Quotes, c) >= 0:
			quote, text = c, ""
		case quote == 0 && (c == ' ' || c == '\t'):
			end()
			continue
		case quote == 0 && x.Braces && (c == '{' || c == '}') && (i == 0 || line[i-1] != '$') && !strings.Contains(string(word), "${"):
			end()
			words = append(words, text)
			continue
		}
		word, begun = append(word, text...), true
		i += length - 1
	}
	if quote != 0 && !x.Open {
		return nil, errors.New("a quote has no end")
	}
	if quote == 0 { // a word in quotes without an end is none
		end()
	}
	return words, nil
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

// dollars matches what begins an escape, a class, or is a dollar sign.
var dollars = regexp.MustCompile(`(?s)\\.|\[\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\]\\])*\]|\$`)

// Expression returns an expression of PCRE as RE2 has it: $ is also before a newline that ends the text.
func Expression(text string) string {
	return dollars.ReplaceAllStringFunc(text, func(s string) string {
		if s == "$" {
			return `\n?$`
		}
		return s
	})
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
