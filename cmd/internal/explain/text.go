package explain

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"svcproxy.dev/svcproxy/source"
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
			fmt.Fprintf(b, "%s %s\n", head, source.Printable(line))
		}
	}
	fmt.Fprintf(b, "%-11s %s\n", "verdict", source.Printable(r.Verdict))
	return b.Flush()
}
