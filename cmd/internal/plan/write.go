package plan

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// How many lines of a part are shown where a report is to fit on a screen of 24 lines.
const (
	fewServices     = 8
	fewConsequences = 5
	fewObjects      = 5
)

// Write writes the report for people, whole or on one screen. Nothing in it can steer the
// terminal, whatever stands in files. Faults are not part of it.
func (r *Report) Write(w io.Writer, all bool) error {
	p := &page{w: w, all: all}
	p.line(r.summary())
	p.part("SETTINGS", fewServices, len(r.Settings), func(i int) string { return "  " + r.Settings[i].Text() })
	p.part("SERVICES", fewServices, len(r.Services), func(i int) string { return r.Services[i].text() })
	p.part("CONNECTIONS", fewConsequences, len(r.Consequences), func(i int) string {
		return "  " + r.Consequences[i].Service + "  " + r.Consequences[i].Text()
	})
	p.part("KERNEL", fewObjects, len(r.Objects), func(i int) string { return "  " + r.Objects[i].Op + " " + r.Objects[i].Object })
	return p.err
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
	all bool
	err error
}

// part writes a title and the first lines of a list, or nothing.
func (p *page) part(title string, few, n int, text func(int) string) {
	if n == 0 {
		return
	}
	p.line(title)
	if p.all || n == few+1 {
		few = n
	}
	for i := range min(n, few) {
		p.line(text(i))
	}
	if n > few {
		p.line(fmt.Sprintf("  and %d more: --all", n-few))
	}
}

func (p *page) line(s string) {
	_, err := fmt.Fprintln(p.w, printable(s))
	p.err = cmp.Or(p.err, err)
}

// printable returns s with everything that is not plain to see written as Go would.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
