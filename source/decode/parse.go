package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	p := jsonParser{text: text, dec: json.NewDecoder(strings.NewReader(text))}
	p.dec.UseNumber()
	root, err := p.value()
	if err != nil {
		return nil, []textFault{syntaxFault(text)}
	}
	start := len(text) - len(strings.TrimLeft(text, " \t\r\n"))
	if _, err = p.token(); !errors.Is(err, io.EOF) {
		return nil, []textFault{syntaxFault(text)}
	}
	tree, ok := root.(map[string]any)
	if !ok {
		return nil, []textFault{{off: start, msg: "the file is " + describe(root), hint: `want an object, as in {"services": []}`}}
	}
	return tree, p.faults
}

// syntaxFault finds where a text stops being JSON. The error of a token stream
// does not tell; that of Unmarshal does.
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

// A jsonParser builds a tree from a stream of tokens, which unlike Unmarshal
// shows keys that are there twice.
type jsonParser struct {
	text   string
	dec    *json.Decoder
	first  int // where the last token that was read begins
	faults []textFault
}

// token reads one token.
func (p *jsonParser) token() (json.Token, error) {
	p.first = int(p.dec.InputOffset())
	for p.first < len(p.text) && strings.IndexByte(" \t\r\n,:", p.text[p.first]) >= 0 {
		p.first++
	}
	return p.dec.Token()
}

func (p *jsonParser) value() (any, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return p.object()
		}
		return p.list()
	case json.Number:
		return number(t.String()), nil
	}
	return t, nil
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

func (p *jsonParser) list() (any, error) {
	list := []any{}
	for p.dec.More() {
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := p.dec.Token()
	return list, err
}

func (p *jsonParser) object() (any, error) {
	object := map[string]any{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string)
		if _, twice := object[key]; twice {
			p.twice(key)
		}
		if object[key], err = p.value(); err != nil {
			return nil, err
		}
	}
	_, err := p.dec.Token()
	return object, err
}

// twice reports a key that its object has already.
func (p *jsonParser) twice(key string) {
	switch len(p.faults) {
	case maxFaults:
	case maxFaults - 1:
		p.faults = append(p.faults, textFault{off: p.first, msg: "more keys are in their object twice"})
	default:
		p.faults = append(p.faults, textFault{off: p.first, msg: "key " + source.Excerpt(key) + " is already in this object"})
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
