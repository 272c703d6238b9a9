package plan

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// screen is how many lines a report has that is to fit on a terminal.
const screen = 24

// Write writes the report for people, whole or on one screen. Nothing in it can steer the
// terminal, whatever stands in files. Faults are not part of it.
func (r *Report) Write(w io.Writer, all bool) error {
	parts := []part{
		partOf("SETTINGS", r.Settings, func(e Edit) string { return "  " + e.Text() }),
		partOf("SERVICES", r.Services, Service.text),
		partOf("CONNECTIONS", r.Consequences, func(c report.Consequence) string { return "  " + c.Service + "  " + consequenceText(c) }),
		partOf("KERNEL", r.Objects, func(o Object) string { return "  " + o.Op + " " + o.Object }),
	}
	room := screen - 1
	if all {
		room = math.MaxInt
	}
	lines := []string{r.summary()}
	for i, n := range share(room, parts) {
		lines = append(lines, parts[i].first(n)...)
	}
	var text strings.Builder
	for _, l := range lines {
		text.WriteString(source.Printable(l) + "\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// A part is a list in a report.
type part struct {
	title string
	lines []string
}

func partOf[T any](title string, list []T, text func(T) string) part {
	p := part{title: title}
	for _, v := range list {
		p.lines = append(p.lines, text(v))
	}
	return p
}

// first returns the title and so many lines, and counts the others; nothing, of a part without lines.
func (p part) first(n int) []string {
	more := len(p.lines) - n
	switch {
	case len(p.lines) == 0:
		return nil
	case more <= 1: // it takes no more room than to count it
		return append([]string{p.title}, p.lines...)
	}
	return append(append([]string{p.title}, p.lines[:n]...), fmt.Sprintf("  and %d more: --all", more))
}

// share returns how many lines of each part have room, besides its title and a line that
// counts the others: what one does not need is for the others.
func share(room int, parts []part) []int {
	lines := make([]int, len(parts))
	for _, p := range parts {
		if len(p.lines) > 0 {
			room -= 2
		}
	}
	for given := true; given; {
		given = false
		for i, p := range parts {
			if lines[i] < len(p.lines) && room > 0 {
				lines[i], room, given = lines[i]+1, room-1, true
			}
		}
	}
	return lines
}

// summary counts everything in a line.
func (r *Report) summary() string {
	if !r.Changes() {
		if len(r.Errors) > 0 || r.Unreadable {
			return "what would change is not known"
		}
		return fmt.Sprintf("nothing would change, compared with %s (%s mode)", r.Against, r.Mode)
	}
	parts := []string{}
	if n := len(r.Settings); n > 0 {
		parts = append(parts, plural(n, "setting"))
	}
	parts = append(parts,
		counted(plural(len(r.Services), "service"), r.Services, func(s Service) string { return s.Op }),
		counted(plural(len(r.Objects), "kernel object"), r.Objects, func(o Object) string { return o.Op }))
	return fmt.Sprintf("%s, compared with %s (%s mode)", strings.Join(parts, ", "), r.Against, r.Mode)
}

// counted says how much of a list is added, changed and removed.
func counted[T any](what string, list []T, op func(T) string) string {
	var parts []string
	for _, o := range []string{"add", "change", "remove"} {
		n := 0
		for _, v := range list {
			if op(v) == o {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", o, n))
		}
	}
	if len(parts) == 0 {
		return what
	}
	return what + " (" + strings.Join(parts, ", ") + ")"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// text returns the service in one line.
func (s Service) text() string {
	sign := map[string]string{"add": "+ ", "change": "~ ", "remove": "- "}[s.Op]
	texts := make([]string, len(s.Edits))
	for i := range s.Edits {
		texts[i] = s.Edits[i].Text()
	}
	return sign + s.Name + "  " + strings.Join(texts, "; ")
}
