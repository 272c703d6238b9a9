package control

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	if len(st.Sessions) > 0 {
		t.line("")
		t.row("ROUTERS")
		for _, s := range st.Sessions {
			t.session(s)
		}
	}
	t.announcedRows(st.Addresses)
	t.list("DRAINS", st.drains(t.now))
	t.list("FAULTS", st.faults())
	t.list("WARNINGS", st.warnings())
	t.list("NEEDS A RESTART", st.Restart)
	return t.end()
}

func (t *table) head(st *Status) {
	t.row(fmt.Sprintf("svcproxy %s, pid %d, %s, up %s", st.Version, st.PID, st.State(), Age(t.now, st.Started)))
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
			last, took = Age(t.now, f.LastSync)+" ago", f.Took.Round(100*time.Microsecond).String()
		}
		if f.Unserved != "" {
			state = "not served: " + f.Unserved
		}
		if f.Waiting != "" {
			state = "waiting for source " + f.Waiting
		}
		if f.Error != "" {
			state = "failing for " + Age(t.now, f.FailingSince) + ": " + f.Error
		}
		t.row(f.Family, last, took, state)
	}
}

func (t *table) files(st *Status) {
	if !slices.ContainsFunc(st.Sources, func(s source.Status) bool { return s.Connection == nil || len(s.Files) > 0 }) {
		return // files are not read
	}
	t.line("")
	t.row("FILE", "STATE", "SINCE", "SERVICES")
	for _, src := range st.Sources {
		for _, f := range src.Files {
			t.row(f.Path, string(f.State), Age(t.now, f.Since), strconv.Itoa(f.Services))
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
		name, endpoints, labels := s.Key().String(), strconv.Itoa(len(s.Endpoints)), cmp.Or(labelText(s.Labels, fewLabels), "-")
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
			lines = append(lines, fmt.Sprintf("service %s: %s", s.Key(), w))
		}
	}
	return lines
}

// connections writes of each source that has one how it reaches its server, and
// the objects of it that are not used as they stand.
func (t *table) connections(st *Status) {
	for _, src := range st.Sources {
		if src.Connection == nil {
			continue
		}
		t.line("")
		t.row("SOURCE", "SERVER", "STATE", "SINCE")
		state := "connected"
		if !src.Connection.Connected {
			state = "stale: " + src.Connection.Error
		}
		t.row(src.Source, cmp.Or(src.Connection.Server, "-"), state, Age(t.now, src.Connection.Since))
		if len(src.Objects) == 0 {
			continue
		}
		t.line("")
		t.row("OBJECT", "STATE", "SINCE")
		for _, o := range src.Objects {
			t.row(o.Path, string(o.State), Age(t.now, o.Since))
		}
	}
}
