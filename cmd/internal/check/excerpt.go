package check

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"svcproxy.dev/svcproxy/source"
)

const (
	indent = "    "

	// maxWidth is how many columns of a terminal an excerpt takes, 80 less indent
	// and the marks where it is cut.
	maxWidth = 70

	// lead is how many of them stand before what a fault is about.
	lead = 40

	tabStop = 8
)

// Excerpt returns the line of a text that a position is in, and below it a caret
// under the place:
//
//	ports = [{ port = 80, protocol = "tpc" }]
//	                                 ^
//
// A long line is cut to what is near. What could steer a terminal is escaped. It
// returns "" where the text has no such place.
func Excerpt(text []byte, pos source.Position) string {
	line, ok := lineAt(text, pos.Line)
	if !ok || pos.Col < 1 || pos.Col > len(line)+1 {
		return ""
	}
	cells, at := cellsOf(line, pos.Col-1)
	from, before := at, 0
	for from > 0 && before+cells[from-1].width <= lead {
		from--
		before += cells[from].width
	}
	to, width := from, 0
	for to < len(cells) && width+cells[to].width <= maxWidth {
		width += cells[to].width
		to++
	}
	var b strings.Builder
	for _, c := range cells[from:to] {
		b.WriteString(c.text)
	}
	shown := b.String()
	if from > 0 {
		shown, before = "..."+shown, before+len("...")
	}
	if to < len(cells) {
		shown += "..."
	}
	return indent + strings.TrimRight(shown, " ") + "\n" + indent + strings.Repeat(" ", before) + "^\n"
}

// lineAt returns a line of text, by its number from 1, without its end.
func lineAt(text []byte, number int) (string, bool) {
	for n := 1; n < number; n++ {
		_, rest, found := bytes.Cut(text, []byte("\n"))
		if !found {
			return "", false
		}
		text = rest
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return strings.TrimSuffix(string(line), "\r"), number > 0
}

// A cell is one character as a terminal shows it.
type cell struct {
	text  string
	width int // columns
}

// cellsOf returns the characters of a line, and the index of the one at an offset.
func cellsOf(line string, off int) (cells []cell, at int) {
	at = -1
	column := 0
	for i := 0; i < len(line); {
		r, size := utf8.DecodeRuneInString(line[i:])
		if at < 0 && off < i+size {
			at = len(cells)
		}
		c := cellOf(r, line[i:i+size], column)
		column += c.width
		cells = append(cells, c)
		i += size
	}
	if at < 0 {
		at = len(cells)
	}
	return cells, at
}

func cellOf(r rune, raw string, column int) cell {
	switch {
	case r == '\t':
		n := tabStop - column%tabStop
		return cell{strings.Repeat(" ", n), n}
	case r == utf8.RuneError && len(raw) == 1, !strconv.IsPrint(r):
		q := strconv.QuoteToASCII(raw)
		return cell{q[1 : len(q)-1], len(q) - 2}
	case unicode.Is(unicode.Mn, r), unicode.Is(unicode.Me, r):
		return cell{raw, 0}
	case isWide(r):
		return cell{raw, 2}
	}
	return cell{raw, 1}
}

// wide are the larger ranges of characters that take two columns, of Unicode's
// EastAsianWidth.txt (W and F).
var wide = [][2]rune{
	{0x1100, 0x115F}, {0x2E80, 0x303E}, {0x3041, 0x33FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xA000, 0xA4CF},
	{0xAC00, 0xD7A3}, {0xF900, 0xFAFF}, {0xFE30, 0xFE6F}, {0xFF00, 0xFF60}, {0xFFE0, 0xFFE6}, {0x1F300, 0x1F64F},
	{0x1F680, 0x1F6FF}, {0x1F900, 0x1F9FF}, {0x20000, 0x3FFFD},
}

func isWide(r rune) bool {
	return slices.ContainsFunc(wide, func(w [2]rune) bool { return r >= w[0] && r <= w[1] })
}
