package explain

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Write writes the report as text. Whatever it holds, it adds no control characters.
func (r *Report) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, s := range r.Steps {
		for i, line := range s.Lines {
			head := fmt.Sprintf("%d %-9s", s.Number, s.Name)
			if i > 0 {
				head = strings.Repeat(" ", len(head))
			}
			fmt.Fprintf(b, "%s %s\n", head, printable(line))
		}
	}
	fmt.Fprintf(b, "%-11s %s\n", "verdict", printable(r.Verdict))
	return b.Flush()
}

func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 {
			return '?'
		}
		return c
	}, s)
}
