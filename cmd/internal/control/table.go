package control

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// WriteTable writes all of st for people, as of now. Nothing in it can steer the
// terminal, whatever stands in files.
func (st *Status) WriteTable(w io.Writer, now time.Time) error {
	t := newTable(w, now)
	t.head(st)
	t.syncs(st.Loop.Families)
	t.files(st)
	t.connections(st)
	t.services(st.Loop.Services)
	t.line("")
	t.endpoints(st.Loop.Services, true)
	t.announcedAll(&st.Announced)
	t.list("DRAINS", st.drains(t))
	t.list("FAULTS", st.faults())
	t.list("WARNINGS", st.warnings())
	t.list("NEEDS A RESTART", st.Restart)
	return t.end()
}

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

func (t *table) head(st *Status) {
	state := "starting"
	switch {
	case !st.Healthy:
		state = "unhealthy"
	case st.Ready:
		state = "ready"
	}
	t.row(fmt.Sprintf("svcproxy %s, pid %d, %s, up %s", st.Version, st.PID, state, age(t.now, st.Started)))
	node := st.Settings.NodeName
	if st.Settings.Zone != "" {
		node += " in zone " + st.Settings.Zone
	}
	t.row(fmt.Sprintf("%s mode on node %s; node ports on %s", st.Settings.Mode, node,
		cmp.Or(strings.Join(st.Settings.NodePortAddresses, ", "), "no address")))
}

func (t *table) syncs(families []report.FamilyStatus) {
	t.line("")
	t.row("FAMILY", "LAST SYNC", "TOOK", "STATE")
	for _, f := range families {
		state, last, took := "ok", "never", "-"
		if !f.LastSync.IsZero() {
			last, took = age(t.now, f.LastSync)+" ago", f.Took.Round(100*time.Microsecond).String()
		}
		if f.Unserved != "" {
			state = "not served: " + f.Unserved
		}
		if f.Waiting != "" {
			state = "waiting for source " + f.Waiting
		}
		if f.Error != "" {
			state = "failing for " + age(t.now, f.FailingSince) + ": " + f.Error
		}
		t.row(f.Family, last, took, state)
	}
}

func (t *table) files(st *Status) {
	if !slices.ContainsFunc(st.Sources, func(s source.Status) bool { return s.Connection == nil }) {
		return // files are not read
	}
	t.line("")
	t.row("FILE", "STATE", "SINCE", "SERVICES")
	for _, src := range st.Sources {
		for _, f := range src.Files {
			t.row(f.Path, string(f.State), age(t.now, f.Since), strconv.Itoa(f.Services))
		}
	}
}

// services writes a row for each address of services, with labels where one of them has some.
func (t *table) services(services []report.ServiceStatus) {
	labelled := slices.ContainsFunc(services, func(s report.ServiceStatus) bool { return len(s.Labels) > 0 })
	row := func(labels string, cells ...string) {
		if labelled {
			cells = slices.Insert(cells, len(cells)-1, labels)
		}
		t.row(cells...)
	}
	t.line("")
	row("LABELS", "SERVICE", "ADDRESS", "KIND", "ACTION", "TARGETS", "ENDPOINTS", "FROM")
	for _, s := range services {
		name, endpoints, labels := s.Namespace+"/"+s.Name, strconv.Itoa(len(s.Endpoints)), cmp.Or(labelText(s.Labels, fewLabels), "-")
		for _, f := range s.Frontends {
			from := s.Unit
			if f.Reason != "" {
				from += "  (" + f.Reason + ")"
			}
			row(labels, name, f.Address, f.Kind, f.Action, strconv.Itoa(f.Targets), endpoints, from)
		}
		if len(s.Frontends) == 0 {
			row(labels, name, "-", "-", map[bool]string{true: "disabled", false: "-"}[s.Disabled], "-", endpoints, s.Unit)
		}
	}
}

// fewLabels is how many labels a column has room for.
const fewLabels = 3

// labelText returns labels by their keys, as patterns are written: "team=web tier=front"; at most so many.
func labelText(labels map[string]string, most int) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	if more := len(words) - most; more > 0 {
		words = append(words[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, " ")
}

// nonEmpty returns the strings that are not.
func nonEmpty(in ...string) []string {
	return slices.DeleteFunc(in, func(s string) bool { return s == "" })
}

// faults returns what keeps files from being used as they stand.
func (st *Status) faults() []string {
	lines := faultLines(st.Faults, false)
	for _, s := range st.Sources {
		for _, f := range slices.Concat(s.Files, s.Objects) {
			lines = append(lines, faultLines(f.Faults, false)...)
		}
	}
	return lines
}

// warnings returns all that is worth knowing but keeps nothing from being used.
func (st *Status) warnings() []string {
	lines := append(faultLines(st.Faults, true), st.Warnings...)
	for _, s := range st.Sources {
		lines = append(lines, s.Warnings...)
		for _, f := range slices.Concat(s.Files, s.Objects) {
			lines = append(lines, faultLines(f.Faults, true)...)
		}
	}
	for _, s := range st.Loop.Services {
		for _, w := range s.Warnings {
			lines = append(lines, fmt.Sprintf("service %s/%s: %s", s.Namespace, s.Name, w))
		}
	}
	return lines
}

func faultLines(faults []source.Fault, warning bool) []string {
	var lines []string
	for _, f := range faults {
		if f.Warning == warning {
			lines = append(lines, f.String())
		}
	}
	return lines
}

// age returns how long ago t was, in its two largest units: "3m20s", "2d4h".
func age(now, t time.Time) string {
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
