package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

func TestDrawScreen(t *testing.T) {
	long := "  PROBLEM " + strings.Repeat("word ", 40)
	var out strings.Builder
	fatal.If(t, draw(strings.NewReader("$ cat <a> & b\n\n"+long+"\n"), &out, `a "title"`))
	var lines []string
	for dec := xml.NewDecoder(strings.NewReader(out.String())); ; {
		tok, err := dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, out.String())
		}
		if text, ok := tok.(xml.CharData); ok && strings.TrimSpace(string(text)) != "" {
			lines = append(lines, string(text))
		}
	}
	if len(lines) != 4 || lines[0] != `a "title"` || lines[1] != "$ cat <a> & b" || !strings.HasPrefix(lines[3], "      word ") {
		t.Errorf("%q", lines)
	}
	for _, line := range lines {
		if len(line) > mostColumns {
			t.Errorf("%d columns: %q", len(line), line)
		}
	}
}
