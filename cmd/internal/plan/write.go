package plan

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// screen is how many lines a report has that is to fit on a terminal.
const screen = 24

// Write writes the report for people, whole or on one screen. Nothing in it can steer the
// terminal, whatever stands in files. Faults are not part of it.
func (r *Report) Write(w io.Writer, all bool) error {
	parts := []part{
		{"SETTINGS", len(r.Settings), func(i int) string { return "  " + r.Settings[i].Text() }},
		{"SERVICES", len(r.Services), func(i int) string { return r.Services[i].text() }},
		{"CONNECTIONS", len(r.Consequences), func(i int) string {
			return "  " + r.Consequences[i].Service + "  " + consequenceText(r.Consequences[i])
		}},
		{"KERNEL", len(r.Objects), func(i int) string { return "  " + r.Objects[i].Op + " " + r.Objects[i].Object }},
	}
	p := &page{w: w}
	p.line(r.summary())
	room := screen - 1
	if all {
		room = math.MaxInt
	}
	for i, lines := range share(room, parts) {
		p.part(parts[i], lines)
	}
	return p.err
}

// A part is a list in a report.
type part struct {
	title string
	n     int
	text  func(int) string // of each of n
}

// share returns how many lines of each part have room, besides its title and a line that
// counts the others: what one does not need is for the others.
func share(room int, parts []part) []int {
	lines := make([]int, len(parts))
	for _, p := range parts {
		if p.n > 0 {
			room -= 2
		}
	}
	for given := true; given; {
		given = false
		for i, p := range parts {
			if lines[i] < p.n && room > 0 {
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
func (s *Service) text() string {
	sign := map[string]string{"add": "+ ", "change": "~ ", "remove": "- "}[s.Op]
	texts := make([]string, len(s.Edits))
	for i := range s.Edits {
		texts[i] = s.Edits[i].Text()
	}
	return sign + s.Name + "  " + strings.Join(texts, "; ")
}

// A page keeps the first error of many writes.
type page struct {
	w   io.Writer
	err error
}

// part writes a title and the first lines of a list, or nothing.
func (p *page) part(list part, lines int) {
	if list.n == 0 {
		return
	}
	p.line(list.title)
	if lines == list.n-1 {
		lines++ // it takes no more room than to count it
	}
	for i := range lines {
		p.line(list.text(i))
	}
	if list.n > lines {
		p.line(fmt.Sprintf("  and %d more: --all", list.n-lines))
	}
}

func (p *page) line(s string) {
	_, err := fmt.Fprintln(p.w, source.Printable(s))
	p.err = cmp.Or(p.err, err)
}
