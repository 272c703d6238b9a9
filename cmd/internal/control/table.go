package control

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A table keeps the first error of many writes.
type table struct {
	w   *tabwriter.Writer
	now time.Time
	err error
}

// row writes cells, escaped.
func (t *table) row(cells ...string) {
	for i, c := range cells {
		cells[i] = source.Printable(c)
	}
	t.line(strings.Join(cells, "\t"))
}

// line writes text that is ours. An empty line ends a table, and with it its columns.
func (t *table) line(text string) {
	if t.err == nil {
		_, t.err = fmt.Fprintln(t.w, text)
	}
}

// list writes a title and lines without columns, or nothing.
func (t *table) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	t.line("")
	t.line(title)
	for _, l := range lines {
		t.row(l)
	}
}

func newTable(w io.Writer, now time.Time) *table {
	return &table{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), now: now}
}

func (t *table) end() error { return cmp.Or(t.err, t.w.Flush()) }

// section writes a title with a number, and rows; left is how many are left out. It writes nothing where there are none.
func (t *table) section(title string, rows [][]string, left int) {
	if len(rows)+left == 0 {
		return
	}
	t.line("")
	t.row(title + "  " + Grouped(len(rows)+left))
	for _, r := range rows {
		t.row(r...)
	}
	t.more(left)
}

// more adds a row that counts the entries that are left out; none for 0.
func (t *table) more(n int) {
	if n > 0 {
		t.row("  and " + Grouped(n) + " more: svcproxy status --problems")
	}
}

// spaced returns the words that are not empty, with a space between.
func spaced(space string, words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), space)
}

// because returns a text with a reason behind it, if there is one.
func because(text, reason string) string {
	if reason == "" {
		return text
	}
	return text + ": " + reason
}

func verb(n int, say string) string {
	if n == 1 {
		return say + "s"
	}
	return say
}

// bracketed returns a place in parentheses; empty: there is none.
func bracketed(place string) string {
	if place == "" {
		return ""
	}
	return "(" + place + ")"
}

// Counted returns "1 file", "2 files", "10,000 files".
func Counted(n int, what string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(what, "s"):
		what += "es"
	default:
		what += "s"
	}
	return Grouped(n) + " " + what
}

// Grouped returns a number with a comma before every three digits.
func Grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return Grouped(n/1000) + fmt.Sprintf(",%03d", n%1000)
}

// Age returns how long ago t was, in its two largest units: "3m20s", "2d4h".
func Age(now, t time.Time) string {
	const day = 24 * time.Hour
	switch d := now.Sub(t).Truncate(time.Second); {
	case t.IsZero():
		return "-"
	case d < 0: // the clock was set back
		return "0s"
	case d < time.Hour:
		return d.String()
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	}
}
