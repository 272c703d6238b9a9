package check_test

import (
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/cmd/internal/check"
	"svcproxy.dev/svcproxy/source"
)

func TestExcerpt(t *testing.T) {
	as := func(n int) string { return strings.Repeat("a", n) }
	tests := []struct {
		name, text string
		line, col  int
		want       string
	}{
		{"first line", "mode = 1\n", 1, 8, "mode = 1\n       ^\n"},
		{"another line", "a\nbcd\r\ne", 2, 2, "bcd\n ^\n"},
		{"last line without an end", "a\nbcd", 2, 3, "bcd\n  ^\n"},
		{"behind the last character", "a = [", 1, 6, "a = [\n     ^\n"},
		{"empty line", "\n", 1, 1, "\n^\n"},
		{"tabs", "\ta\tb", 1, 4, "        a       b\n                ^\n"},
		{"a tab itself", "a\tb", 1, 2, "a       b\n ^\n"},
		{"letters of two bytes", "é = ü", 1, 6, "é = ü\n    ^\n"},
		{"within a letter", "é = ü", 1, 7, "é = ü\n    ^\n"},
		{"wide letters", "名 = 1", 1, 7, "名 = 1\n     ^\n"},
		{"combining marks", "e\u0301 = 1", 1, 7, "e\u0301 = 1\n    ^\n"},
		{"what steers a terminal", "\x1b[1m = \u009b1", 1, 8, "\\x1b[1m = \\u009b1\n          ^\n"},
		{"text that runs backwards", "\u202ea = 1", 1, 8, "\\u202ea = 1\n          ^\n"},
		{"not UTF-8", "a = \xff1", 1, 5, "a = \\xff1\n    ^\n"},
		{"a long line, its start", as(100), 1, 1, as(70) + "...\n^\n"},
		{"a long line, its middle", as(100) + "b" + as(100), 1, 101, "..." + as(40) + "b" + as(29) + "...\n" + strings.Repeat(" ", 43) + "^\n"},
		{"a long line, its end", as(100) + "b", 1, 101, "..." + as(40) + "b\n" + strings.Repeat(" ", 43) + "^\n"},
		{"a long line of tabs", strings.Repeat("\t", 100) + "b", 1, 101, "..." + strings.Repeat(" ", 40) + "b\n" + strings.Repeat(" ", 43) + "^\n"},
		{"no place", "a", 0, 0, ""},
		{"no such line", "a\n", 3, 1, ""},
		{"no such column", "a\n", 1, 3, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := ""
			for line := range strings.Lines(tt.want) {
				want += "    " + line
			}
			if got := check.Excerpt([]byte(tt.text), source.Position{Line: tt.line, Col: tt.col}); got != want {
				t.Errorf("\n got: %q\nwant: %q", got, want)
			}
		})
	}
}
