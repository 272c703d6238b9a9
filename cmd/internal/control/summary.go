package control

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A Summary is a Status in a size that does not grow with the number of services and files.
type Summary struct {
	Daemon
	report.Totals

	Files    map[source.FileState]int `json:"files"`                  // how many, by state
	Broken   []source.FileStatus      `json:"broken_files,omitempty"` // not used as they stand
	Problems []report.Problem         `json:"problems,omitempty"`
	Warnings []string                 `json:"warnings,omitempty"`
	Drains   []conditions.Drained     `json:"drains,omitempty"` // that of this host first
	Restart  []string                 `json:"restart_needed,omitempty"`
	Left     Left                     `json:"left_out,omitzero"`

	Announced AnnouncedSummary `json:"announced,omitzero"`

	Everything []report.ServiceStatus `json:"all_services,omitempty"` // where they are few, see MaxListed
}

// Left says how much is left out of a Summary.
type Left struct {
	Broken   int `json:"broken_files,omitempty"`
	Problems int `json:"problems,omitempty"`
	Warnings int `json:"warnings,omitempty"`
	Drains   int `json:"drains,omitempty"`
}

const (
	// Few is how many problems a Summary names where nobody asked for more, so that all of
	// it stands on a screen of 24 lines: half as many files, and a third as many warnings.
	Few = 6

	// MaxListed is how many addresses services may have for a Summary to have all of them.
	MaxListed = 8

	// All is how many that are when all are asked for.
	All = 1 << 30
)

// MostOf returns how many problems a question asks for.
func MostOf(query url.Values) (int, error) {
	text := query.Get("most")
	if text == "" {
		return Few, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("most is %q; want a number from 0", text)
	}
	return n, nil
}

// Summarize makes a Summary of a Status without services, and of what is known of those. It
// names at most so many problems, see Few.
func Summarize(st Status, loop report.Summary, most int) Summary {
	s := Summary{Daemon: st.Daemon, Totals: loop.Totals, Files: make(map[source.FileState]int), Restart: st.Restart}
	s.files(st.Sources)
	s.Announced = st.Announced.summary(most)
	s.Problems = slices.Concat(st.problems(loop.Families), sessionProblems(st.Sessions), loop.Problems)
	s.Warnings = slices.Concat(st.notes(), loop.Warnings)
	s.Left = Left{Problems: loop.MoreProblems, Warnings: loop.MoreWarnings}
	s.Broken = first(s.Broken, (most+1)/2, &s.Left.Broken)
	s.Problems = first(s.Problems, most, &s.Left.Problems)
	s.Warnings = first(s.Warnings, (most+2)/3, &s.Left.Warnings)
	s.Drains = first(st.Drains, max(most, 1), &s.Left.Drains)
	return s
}

// files counts files, and keeps those that are not used as they stand.
func (s *Summary) files(sources []source.Status) {
	for _, src := range sources {
		for _, f := range src.Files {
			s.Files[f.State]++
			if f.State != source.Accepted {
				s.Broken = append(s.Broken, f)
			}
		}
	}
}

// problems returns those of the daemon, its sources and the host, the most pressing first.
func (st *Status) problems(families []report.FamilyStatus) (list []report.Problem) {
	if !st.Healthy {
		list = append(list, report.Problem{Subject: "svcproxy", State: "UNHEALTHY", Reason: "a change has waited too long for a sync"})
	}
	for _, f := range families {
		list = append(list, familyProblems(f)...)
	}
	for _, f := range faultLines(st.Faults, false) {
		list = append(list, report.Problem{Subject: "settings", State: "STALE", Reason: f})
	}
	for _, src := range st.Sources {
		list = append(list, sourceProblems(src)...)
	}
	for _, w := range st.Warnings {
		list = append(list, report.Problem{Subject: "host", Reason: w})
	}
	return list
}

func familyProblems(f report.FamilyStatus) (list []report.Problem) {
	add := func(state, reason string) {
		list = append(list, report.Problem{Subject: f.Family, State: state, Reason: reason})
	}
	if f.Error != "" {
		add("SYNC FAILS", "since "+f.FailingSince.Format(time.RFC3339)+": "+f.Error)
	}
	if f.Stalled != "" {
		add("STALLED", "since "+f.StalledSince.Format(time.RFC3339)+": "+f.Stalled)
	}
	if f.Waiting != "" {
		add("WAITS", "for source "+f.Waiting)
	}
	if f.Unserved != "" {
		add("UNSERVED", f.Unserved)
	}
	return list
}

func sourceProblems(src source.Status) (list []report.Problem) {
	subject := "source " + src.Source
	if c := src.Connection; c != nil && !c.Connected {
		list = append(list, report.Problem{Subject: subject, Address: c.Server, State: "DISCONNECTED", Reason: c.Error})
	}
	for _, w := range src.Warnings[:len(src.Warnings)-src.Notes] {
		list = append(list, report.Problem{Subject: subject, Reason: w})
	}
	for _, o := range src.Objects {
		for _, f := range faultLines(o.Faults, false) {
			list = append(list, report.Problem{Subject: o.Path, State: "REFUSED", Reason: f})
		}
	}
	return list
}

// notes returns what is worth knowing and hinders nothing, except for services.
func (st *Status) notes() []string {
	lines := faultLines(st.Faults, true)
	for _, src := range st.Sources {
		lines = append(lines, src.Warnings[len(src.Warnings)-src.Notes:]...)
		for _, f := range slices.Concat(src.Files, src.Objects) {
			lines = append(lines, faultLines(f.Faults, true)...)
		}
	}
	return lines
}

// Trouble returns why not all is as it should be; empty: it is.
func (s *Summary) Trouble() string {
	broken, problems := len(s.Broken)+s.Left.Broken, len(s.Problems)+s.Left.Problems
	switch {
	case !s.Ready:
		return "the first sync is not complete"
	case problems > 0 && len(s.Problems) > 0:
		return Counted(problems, "problem") + ", the first: " + problemLine(s.Problems[0])
	case problems > 0:
		return Counted(problems, "problem")
	case broken > 0:
		return Counted(broken, "file") + " not used as it stands, see svcproxy status"
	}
	return ""
}

// problemLine returns a problem on a line.
func problemLine(p report.Problem) string {
	return source.Printable(spaced(" ", p.Subject, p.Address, p.State, p.Reason, bracketed(p.Place)))
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
