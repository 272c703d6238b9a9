package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"

	"svcproxy.dev/svcproxy/source"
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
	if _, err := toml.Decode(text, &root); err != nil {
		f := textFault{msg: printable(err.Error())}
		if pe, ok := errors.AsType[toml.ParseError](err); ok { // its column may be that of the line before
			f = textFault{off: pe.Position.Start, msg: printable(pe.Message)}
		}
		return nil, []textFault{f}
	}
	tree, _ = root.(map[string]any)
	return tree, nil
}

// syntaxFault finds where a text stops being JSON.
func syntaxFault(text string) textFault {
	var v struct{} // the whole text is looked at before anything is made of it
	err := json.Unmarshal([]byte(text), &v)
	se, ok := errors.AsType[*json.SyntaxError](err)
	switch {
	case ok && strings.HasPrefix(se.Error(), "unexpected end"):
		return textFault{off: len(text), msg: "the text ends within a value"}
	case ok:
		return textFault{off: int(se.Offset) - 1, msg: printable(se.Error())}
	}
	return textFault{msg: "the text is not JSON"}
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
		b.WriteString(source.Printable(string(r)))
	}
	return b.String()
}
