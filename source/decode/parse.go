package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"svcproxy/source"
)

// parseTOML returns the tree of a text in TOML.
func parseTOML(text string) (tree map[string]any, faults []textFault) {
	defer func() {
		// The parser panics with "BUG: ..." where its lexer let through what it did not expect.
		if r := recover(); r != nil {
			tree, faults = nil, []textFault{{msg: "the TOML parser cannot read this file: " + printable(fmt.Sprint(r))}}
		}
	}()
	var root any
	_, err := toml.Decode(text, &root)
	if err != nil {
		return nil, []textFault{tomlFault(err)}
	}
	tree, _ = root.(map[string]any)
	return tree, nil
}

// tomlFault places an error of the TOML parser. Of its position only the offset
// is right: its column is that of the line before where a line begins.
func tomlFault(err error) textFault {
	var pe toml.ParseError
	if !errors.As(err, &pe) {
		return textFault{msg: printable(err.Error())}
	}
	return textFault{off: pe.Position.Start, msg: printable(pe.Message)}
}

// parseJSON returns the tree of a text in JSON.
func parseJSON(text string) (map[string]any, []textFault) {
	if !json.Valid([]byte(text)) {
		return nil, []textFault{syntaxFault(text)}
	}
	p := jsonParser{text: text}
	p.blank()
	start := p.at
	root := p.value()
	tree, ok := root.(map[string]any)
	if !ok {
		return nil, []textFault{{off: start, msg: "the file is " + describe(root), hint: `want an object, as in {"services": []}`}}
	}
	return tree, p.faults
}

// syntaxFault finds where a text stops being JSON.
func syntaxFault(text string) textFault {
	var v struct{} // the whole text is looked at before anything is made of it
	err := json.Unmarshal([]byte(text), &v)
	var se *json.SyntaxError
	switch {
	case errors.As(err, &se) && strings.HasPrefix(se.Error(), "unexpected end"):
		return textFault{off: len(text), msg: "the text ends within a value"}
	case errors.As(err, &se):
		return textFault{off: int(se.Offset) - 1, msg: printable(se.Error())}
	}
	return textFault{msg: "the text is not JSON"}
}

// A jsonParser builds a tree from a text that is known to be valid. Unlike
// Unmarshal it sees keys that are there twice, and it takes a third of the time
// of a stream of tokens, which shows them too.
type jsonParser struct {
	text   string
	at     int
	faults []textFault
}

// blank skips white space, and what stands between values.
func (p *jsonParser) blank() {
	for p.at < len(p.text) && isBetween[p.text[p.at]] {
		p.at++
	}
}

var isBetween = [256]bool{' ': true, '\t': true, '\r': true, '\n': true, ',': true, ':': true}

// value reads the value that begins here.
func (p *jsonParser) value() any {
	switch p.text[p.at] {
	case '{':
		return p.object()
	case '[':
		return p.list()
	case '"':
		return p.str()
	}
	switch word := p.word(); word {
	case "true":
		return true
	case "false":
		return false
	case "null":
		return nil
	default:
		return number(word)
	}
}

// word reads what is not in quotes or brackets.
func (p *jsonParser) word() string {
	start := p.at
	for p.at < len(p.text) && !isBetween[p.text[p.at]] && p.text[p.at] != ']' && p.text[p.at] != '}' {
		p.at++
	}
	return p.text[start:p.at]
}

// number keeps the difference between integers and other numbers that TOML
// makes: 80 is an int64; 80.0, 8e1 and what is too large for one are a float64.
func number(s string) any {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range: infinite, which no key takes
	return f
}

func (p *jsonParser) str() string {
	start, escaped := p.at, false
	for p.at++; p.text[p.at] != '"'; p.at++ {
		if p.text[p.at] == '\\' {
			escaped = true
			p.at++
		}
	}
	p.at++
	if !escaped {
		return p.text[start+1 : p.at-1]
	}
	var s string
	_ = json.Unmarshal([]byte(p.text[start:p.at]), &s) // it is valid
	return s
}

func (p *jsonParser) list() []any {
	list := []any{}
	p.at++
	for p.blank(); p.text[p.at] != ']'; p.blank() {
		list = append(list, p.value())
	}
	p.at++
	return list
}

func (p *jsonParser) object() map[string]any {
	object := map[string]any{}
	p.at++
	for p.blank(); p.text[p.at] != '}'; p.blank() {
		at := p.at
		key := p.str()
		if _, twice := object[key]; twice {
			p.twice(key, at)
		}
		p.blank()
		object[key] = p.value()
	}
	p.at++
	return object
}

// twice reports a key that its object has already.
func (p *jsonParser) twice(key string, at int) {
	switch len(p.faults) {
	case maxFaults:
	case maxFaults - 1:
		p.faults = append(p.faults, textFault{off: at, msg: "more keys are in their object twice"})
	default:
		p.faults = append(p.faults, textFault{off: at, msg: "key " + source.Excerpt(key) + " is already in this object"})
	}
}

// maxMessage bounds the messages of the parsers, which quote what they read. In bytes.
const maxMessage = 200

// printable makes a parser's message fit for a log line or a terminal.
func printable(msg string) string {
	var b strings.Builder
	for _, r := range msg {
		if b.Len() >= maxMessage {
			b.WriteString("...")
			break
		}
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
