// Screen makes a drawing (SVG) of what a terminal shows:
//
//	screen TITLE <text >drawing.svg
//
// Lines that begin with "$ " are commands, and stand out.
package main

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"log"
	"os"
	"strings"
	"unicode/utf8"
)

// Sizes of a character and of what is around the text, in pixels.
const (
	width, height = 7.23, 17 // of 12 px monospace
	margin, bar   = 14, 30
)

// mostColumns are those of a line; what is longer goes on in the next one.
const mostColumns = 112

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: screen TITLE <text >drawing.svg")
	}
	if err := draw(os.Stdin, os.Stdout, os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func draw(in io.Reader, out io.Writer, title string) error {
	var lines []string
	columns := 60
	s := bufio.NewScanner(in)
	for s.Scan() {
		for _, line := range wrap(strings.TrimRight(s.Text(), " ")) {
			lines, columns = append(lines, line), max(columns, utf8.RuneCountInString(line))
		}
	}
	if s.Err() != nil {
		return s.Err()
	}
	w, h := int(float64(columns)*width)+2*margin, len(lines)*height+bar+2*margin
	b := bufio.NewWriter(out)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12" role="img" aria-label="%s">`+"\n",
		w, h, w, html.EscapeString(title))
	fmt.Fprintf(b, `<rect width="%d" height="%d" rx="8" fill="#0d1117"/><path d="M0 30V8a8 8 0 0 1 8-8H%da8 8 0 0 1 8 8v22z" fill="#21262d"/>`+"\n", w, h, w-8)
	b.WriteString(`<g><circle cx="18" cy="15" r="5" fill="#f85149"/><circle cx="36" cy="15" r="5" fill="#d29922"/><circle cx="54" cy="15" r="5" fill="#3fb950"/></g>` + "\n")
	fmt.Fprintf(b, `<text x="%d" y="19" text-anchor="middle" fill="#8b949e">%s</text>`+"\n", w/2, html.EscapeString(title))
	for i, line := range lines {
		fill := "#c9d1d9"
		if strings.HasPrefix(line, "$ ") {
			fill = "#7ee787"
		}
		if line != "" {
			fmt.Fprintf(b, `<text x="%d" y="%d" fill="%s" xml:space="preserve" textLength="%.1f" lengthAdjust="spacingAndGlyphs">%s</text>`+"\n",
				margin, bar+margin+i*height+11, fill, float64(utf8.RuneCountInString(line))*width, html.EscapeString(line))
		}
	}
	b.WriteString("</svg>\n")
	return b.Flush()
}

// wrap returns a line as lines of mostColumns at most, broken between words.
func wrap(line string) (lines []string) {
	indent := line[:len(line)-len(strings.TrimLeft(line, " "))] + "    "
	for len([]rune(line)) > mostColumns {
		runes := []rune(line)
		end := strings.LastIndex(string(runes[:mostColumns]), " ")
		if end <= len(indent) {
			break
		}
		lines, line = append(lines, line[:end]), indent+line[end+1:]
	}
	return append(lines, line)
}
