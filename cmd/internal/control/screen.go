package control

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// A Screen shows one text after another at the same place of a terminal. Only lines
// that changed are written, so that nothing flickers.
type Screen struct {
	w             io.Writer
	rows, columns int      // as of the last text
	shown         []string // lines
}

// NewScreen returns the screen of a terminal.
func NewScreen(w io.Writer) *Screen { return &Screen{w: w} }

// Show shows the lines of a text that have room in so many rows and columns; 0: no limit.
func (s *Screen) Show(text []byte, rows, columns int) error {
	var out bytes.Buffer
	if s.shown == nil || rows != s.rows || columns != s.columns {
		out.WriteString("\x1b[H\x1b[2J") // home, clear
		s.shown, s.rows, s.columns = []string{}, rows, columns
	}
	lines := fitting(text, rows, columns)
	for i, line := range lines {
		if i >= len(s.shown) || s.shown[i] != line {
			fmt.Fprintf(&out, "\x1b[%d;1H%s\x1b[K", i+1, line) // there; to the end of the line, clear
		}
	}
	if len(lines) < len(s.shown) {
		fmt.Fprintf(&out, "\x1b[%d;1H\x1b[J", len(lines)+1) // to the end of the screen, clear
	}
	fmt.Fprintf(&out, "\x1b[%d;1H", min(len(lines)+1, max(rows, 1))) // where a prompt belongs
	s.shown = lines
	_, err := s.w.Write(out.Bytes())
	return err
}

// fitting returns the lines of a text that have room, cut where they have not.
func fitting(text []byte, rows, columns int) []string {
	lines := []string{}
	for line := range bytes.Lines(text) {
		lines = append(lines, Cut(string(bytes.TrimSuffix(line, []byte("\n"))), columns))
	}
	if rows > 1 && len(lines) >= rows { // the last row is for the cursor
		lines = append(lines[:rows-2], Cut(fmt.Sprintf("... and %d more lines", len(lines)-rows+2), columns))
	}
	return lines
}

// Cut returns the beginning of a line that has room in so many columns.
func Cut(line string, columns int) string {
	if columns <= 0 || utf8.RuneCountInString(line) <= columns {
		return line
	}
	runes := []rune(line)
	return string(runes[:max(columns-1, 0)]) + ">"
}
