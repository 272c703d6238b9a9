package control

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// WriteTable writes s for people, as of now. Nothing in it can steer the terminal.
func (s *Summary) WriteTable(w io.Writer, now time.Time) error {
	t := newTable(w, now)
	t.summaryHead(s)
	t.brokenFiles(s)
	t.section("PROBLEMS", problemRows(s.Problems), s.Left.Problems)
	t.announced(&s.Announced, s.Left.Problems == 0)
	var warnings [][]string
	for _, w := range s.Warnings {
		warnings = append(warnings, []string{"  " + w})
	}
	t.section("WARNINGS", warnings, s.Left.Warnings)
	restart := ""
	if len(s.Restart) > 0 {
		restart = "NEEDS A RESTART  " + strings.Join(s.Restart, ", ")
	}
	if last := spaced("  ", restart, t.drains(s)); last != "" {
		t.row(last)
	}
	if len(s.Everything) > 0 {
		t.line("")
		t.addresses(s.Everything, true)
	}
	return t.end()
}

func (t *table) summaryHead(s *Summary) {
	state := s.State()
	if !s.Healthy {
		state = strings.ToUpper(state)
	}
	t.row(fmt.Sprintf("svcproxy %s  %s  %s  %s  up %s  pid %d", s.Version, s.Settings.Mode, s.Settings.NodeName, state, Age(t.now, s.Started), s.PID))
	services := Counted(s.Services, "service")
	if s.Disabled > 0 {
		services += " (" + Grouped(s.Disabled) + " disabled)"
	}
	t.row(services + ", " + s.Addresses() + "  " + s.LastSync(t.now))
}

// LastSync says when the last sync was that succeeded, and how long it took.
func (s *Summary) LastSync(now time.Time) string {
	if len(s.Families) > 0 {
		f := slices.MaxFunc(s.Families, func(a, b report.FamilyStatus) int { return a.LastSync.Compare(b.LastSync) })
		if !f.LastSync.IsZero() {
			return fmt.Sprintf("sync %v, %s ago", rounded(f.Took), Age(now, f.LastSync))
		}
	}
	return "no sync yet"
}

// rounded returns d without what nobody wants to know.
func rounded(d time.Duration) time.Duration {
	for unit := 100 * time.Microsecond; ; unit *= 10 {
		if d < 1000*unit || unit >= time.Second {
			return d.Round(unit)
		}
	}
}

// Addresses returns how many addresses do what: "19,998 addresses serve, 2 reject".
func (s *Summary) Addresses() string {
	parts := []string{Counted(s.Actions["balance"], "address") + " " + verb(s.Actions["balance"], "serve")}
	for _, a := range []struct{ action, say string }{
		{"reject", "reject"}, {"drop", "drop"}, {"unserved", "UNSERVED"}, {"in part", "in part"}, {"pending", "pending"},
	} {
		if n := s.Actions[a.action]; n > 0 {
			if a.action == "reject" || a.action == "drop" {
				a.say = verb(n, a.say)
			}
			parts = append(parts, Grouped(n)+" "+a.say)
		}
	}
	return strings.Join(parts, ", ")
}

// brokenFiles counts files, and names those that are not used as they stand.
func (t *table) brokenFiles(s *Summary) {
	if len(s.Files) == 0 {
		return
	}
	line := "FILES  " + Grouped(s.Files[source.Accepted]) + " ok"
	for _, state := range []source.FileState{source.Refused, source.Stale} {
		if n := s.Files[state]; n > 0 {
			line += fmt.Sprintf("  %s %s", Grouped(n), strings.ToUpper(string(state)))
		}
	}
	t.line("")
	t.row(line)
	for _, f := range s.Broken {
		at, what := FirstFault(f)
		t.row("  "+at, fmt.Sprintf("%s for %s, %s", f.State, Age(t.now, f.Since), Counted(f.Services, "service")), what)
	}
	t.more(s.Left.Broken)
}

// FirstFault returns where and what the first fault of a file is.
func FirstFault(f source.FileStatus) (at, what string) {
	at = f.Path
	faults := slices.DeleteFunc(slices.Clone(f.Faults), func(x source.Fault) bool { return x.Warning })
	if len(faults) == 0 {
		return at, ""
	}
	x := faults[0]
	if x.Pos.File != "" {
		at, x.Pos = x.Pos.String(), source.Position{}
	}
	what = x.String()
	if n := len(faults) - 1; n > 0 {
		what += fmt.Sprintf(" (and %s)", Counted(n, "more fault"))
	}
	return at, what
}

// problemRows returns a row for each problem. What is of no service has no columns, so that long texts
// do not move those of services.
func problemRows(list []report.Problem) (rows [][]string) {
	for _, p := range list {
		row := []string{"  " + problemLine(p)}
		if p.Address != "" && p.State != "" {
			row = []string{"  " + p.Subject, p.Address, p.State, strings.TrimSpace(p.Reason + " " + bracketed(p.Place))}
		}
		rows = append(rows, row)
	}
	return rows
}

// addresses writes a row for each address of services, and why it does not serve; named: behind the name of its service.
func (t *table) addresses(services []report.ServiceStatus, named bool) {
	row := func(name string, cells ...string) {
		if named {
			cells = slices.Insert(cells, 0, name)
		}
		t.row(cells...)
	}
	row("SERVICE", "ADDRESS", "KIND", "READY", "ACTION")
	for _, s := range services {
		for _, f := range report.Runs(s.Frontends) {
			row(s.Key().String(), f.Address, f.Kind, fmt.Sprintf("%d/%d", f.Targets, f.Endpoints), ActionOf(f))
		}
		if len(s.Frontends) == 0 {
			row(s.Key().String(), "-", "-", "-", NoAddress(s))
		}
	}
}

// NoAddress says why a service has no frontends.
func NoAddress(s report.ServiceStatus) string {
	if s.Disabled {
		return "disabled"
	}
	return "no address or node port that is served here"
}

// ActionOf returns what becomes of packets to an address, and why.
func ActionOf(f report.FrontendStatus) string {
	restricted := ""
	if f.Restricted {
		restricted = "restricted"
	}
	if f.Serves() || f.Action == "pending" && f.Reason == "" {
		return spaced("  ", f.Action, f.Forward, restricted, f.Reason)
	}
	return spaced("  ", f.Trouble(), restricted, f.Reason)
}

// WriteServices writes services for people, as of now: their addresses, and for each of them its endpoints.
func WriteServices(w io.Writer, services []report.ServiceStatus, now time.Time) error {
	t := newTable(w, now)
	for i, s := range services {
		if i > 0 {
			t.line("")
		}
		from := cmp.Or(s.Place, s.Unit)
		if from != "" {
			from = "  (" + from + ")"
		}
		t.row("SERVICE  " + s.Key().String() + from)
		if s.Description != "" {
			t.row("ABOUT    " + s.Description)
		}
		if len(s.Labels) > 0 {
			t.row("LABELS   " + labelText(s.Labels, source.MaxLabels))
		}
		if s.Traffic != nil {
			t.row(fmt.Sprintf("TRAFFIC  %.1f connections/s, %s active", s.Traffic.ConnectionRate, Grouped(int(s.Traffic.Active))))
		}
		t.addresses([]report.ServiceStatus{s}, false)
		t.line("")
		t.endpoints([]report.ServiceStatus{s}, false)
		if len(s.Endpoints) == 0 {
			t.row("-", "no endpoints", "-", "-")
		}
		t.announcedRows(s.Announced)
		for _, text := range s.Warnings {
			t.row("warning: " + text)
		}
	}
	return t.end()
}

// WriteAddresses writes a row for each address of services.
func WriteAddresses(w io.Writer, services []report.ServiceStatus) error {
	t := newTable(w, time.Time{})
	t.addresses(services, true)
	return t.end()
}
