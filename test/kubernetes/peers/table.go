package peers

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// markdown writes targets and tables.
func (r *report) markdown() string {
	var w strings.Builder
	fmt.Fprint(&w, "| target, times better than kube-proxy | at least | measured | |\n| --- | --- | --- | --- |\n")
	for _, t := range targets {
		got, what := r.judge(t)
		fmt.Fprintf(&w, "| %s, %s: %s | %g | %s | %s |\n", t.mode, t.size.words(), t.measure, t.times, got, what)
	}
	for _, p := range plots {
		fmt.Fprintf(&w, "\n![%s](%s)\n", p.title, p.file)
	}
	for _, m := range modes {
		for _, s := range r.plan.sizes[m] {
			r.table(&w, m, s)
		}
	}
	return w.String()
}

// subjects says what was measured, and where.
func subjects(cells []*cell) string {
	var all []string
	for _, c := range cells {
		all = append(all, programOf(c.Peer)+" "+c.Subject.Version)
	}
	slices.Sort(all)
	return fmt.Sprintf("%s of %s on %s.", rounds(cells), strings.Join(slices.Compact(all), " and "), cells[0].Subject.Machine)
}

// rounds says of how many rounds figures are, without those that took too long.
func rounds(cells []*cell) string {
	var counts []int
	for _, c := range cells {
		if !slices.ContainsFunc(c.Rounds, func(r round) bool { return len(r.Over) > 0 }) {
			counts = append(counts, len(c.Rounds))
		}
	}
	if len(counts) == 0 {
		return "No round ended in time"
	}
	switch least, most := slices.Min(counts), slices.Max(counts); {
	case most == 1:
		return "One round"
	case least == most:
		return fmt.Sprintf("Medians of %d rounds", most)
	default:
		return fmt.Sprintf("Medians of %d to %d rounds", least, most)
	}
}

func (r *report) table(w *strings.Builder, mode string, s size) {
	var cells []*cell
	for _, p := range s.peers() {
		if c := r.cells[keyOf(mode, s, p)]; c != nil {
			cells = append(cells, c)
		}
	}
	if len(cells) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### %s, %s\n\n%s\n\n| | svcproxy | svcproxy, from files |", mode, s.words(), subjects(cells))
	if !s.alone() {
		fmt.Fprint(w, " kube-proxy | times better |")
	}
	fmt.Fprintf(w, "\n| --- |%s\n", strings.Repeat(" --: |", map[bool]int{true: 2, false: 4}[s.alone()]))
	for _, m := range measures {
		mine, files := r.figure(mode, s, ours, m), r.figure(mode, s, oursFiles, m)
		fmt.Fprintf(w, "| %s | %s | %s |", m, mine.show(m), files.show(m))
		if !s.alone() {
			other := r.figure(mode, s, theirs, m)
			fmt.Fprintf(w, " %s | %s |", other.show(m), ratioOf(m, mine, other))
		}
		fmt.Fprintln(w)
	}
}

// words names a size for readers.
func (s size) words() string {
	return fmt.Sprintf("%s services of %d endpoints", thousands(s.services), s.endpoints)
}

func thousands(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// show writes a figure of a measure in its unit.
func (f figure) show(m measure) string {
	var text string
	switch {
	case f.rounds == 0:
		return "–"
	case m.bytes():
		text = fmt.Sprintf("%.0f MiB", f.value/(1<<20))
	case m.rate():
		text = thousands(int(f.value))
	default:
		text = seconds(f.value)
	}
	if f.over {
		return "over " + text
	}
	return text
}

// seconds writes a time with three digits or so.
func seconds(s float64) string {
	unit, name := 1.0, "s"
	switch {
	case s == 0:
		return "0 s"
	case s < 1e-3:
		unit, name = 1e-6, "µs"
	case s < 1:
		unit, name = 1e-3, "ms"
	}
	text := strconv.FormatFloat(s/unit, 'g', 3, 64)
	if s >= 1000 {
		text = strconv.FormatFloat(s, 'f', 0, 64)
	}
	return text + " " + name
}

// Marks of the page between which the results stand.
const (
	beginMark = "<!-- results of make bench-peers -->\n"
	endMark   = "<!-- end of the results -->\n"
)

// insert puts results into a page, in place of earlier ones.
func insert(page []byte, results string) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte(beginMark))
	_, after, ok2 := bytes.Cut(rest, []byte(endMark))
	if !ok || !ok2 {
		return nil, fmt.Errorf("the page has no place for results: want lines %q and %q", beginMark, endMark)
	}
	return slices.Concat(before, []byte(beginMark), []byte("\n"+results+"\n"), []byte(endMark), after), nil
}

// page is what results are written to, with the plots beside it.
const page = "bench-peers.md"

// writeTo writes the results into a folder; into is whether it has a page for them already.
func (r *report) writeTo(dir string, into bool) error {
	path, text := filepath.Join(dir, page), []byte(r.markdown())
	if into {
		old, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("writing results: %w", err)
		}
		if text, err = insert(old, r.markdown()); err != nil {
			return fmt.Errorf("writing results into %s: %w", path, err)
		}
	}
	if err := replaceFile(path, text); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	for _, p := range plots {
		if err := replaceFile(filepath.Join(dir, p.file), []byte(p.svg(r))); err != nil {
			return fmt.Errorf("drawing results: %w", err)
		}
	}
	return nil
}
