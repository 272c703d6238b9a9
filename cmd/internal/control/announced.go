package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
)

// Announced is what the network is told of.
type Announced struct {
	Sessions  []announcer.Session       `json:"bgp_sessions,omitempty"` // with routers
	Addresses []report.AnnouncedAddress `json:"announced,omitempty"`    // that are to be announced
}

// An AnnouncedSummary is Announced in short.
type AnnouncedSummary struct {
	Sessions []announcer.Session       `json:"bgp_sessions,omitempty"` // those that are down first
	Count    map[string]int            `json:"announced,omitempty"`    // addresses, by means
	Withheld []report.AnnouncedAddress `json:"withheld,omitempty"`     // that are not announced
	Left     int                       `json:"withheld_left_out,omitempty"`
}

// summary returns a in short, with at most so many addresses.
func (a *Announced) summary(most int) AnnouncedSummary {
	s := AnnouncedSummary{Count: make(map[string]int)}
	up := func(x announcer.Session) bool { return x.Up() }
	s.Sessions = slices.Concat(slices.DeleteFunc(slices.Clone(a.Sessions), up), lists.Keep(a.Sessions, up))
	var unheard []report.AnnouncedAddress // which come last: the only reason is that no router is reachable
	for _, row := range a.Addresses {
		switch {
		case row.Announced:
			s.Count[row.Means]++
		case row.Withheld == policy.NoRouter.String():
			unheard = append(unheard, row)
		default:
			s.Withheld = append(s.Withheld, row)
		}
	}
	s.Withheld = first(append(s.Withheld, unheard...), most, &s.Left)
	return s
}

// sessionProblems are those of sessions with routers.
func sessionProblems(list []announcer.Session) (problems []report.Problem) {
	for _, s := range list {
		if !s.Up() {
			problems = append(problems, report.Problem{Subject: "bgp", Address: s.Peer.String(), State: "DOWN", Reason: strings.TrimSpace(s.State + " " + s.LastError)})
		}
	}
	return problems
}

// maxSessions is how many sessions a Summary shows where nobody asked for more.
const maxSessions = 4

// announced writes what the network is told of, and what not.
func (t *table) announced(s *AnnouncedSummary, all bool) {
	if len(s.Sessions)+len(s.Count)+len(s.Withheld)+s.Left == 0 {
		return
	}
	t.line("")
	t.row("ANNOUNCED  " + s.counts())
	sessions := s.Sessions
	if !all {
		sessions = sessions[:min(len(sessions), maxSessions)]
	}
	for _, x := range sessions {
		t.session(x)
	}
	if more := len(s.Sessions) - len(sessions); more > 0 {
		t.row("  and " + Counted(more, "more router") + ": svcproxy status -o wide")
	}
	for _, a := range s.Withheld {
		t.row("  "+a.Address.String(), a.Means, "NOT", strings.TrimSpace(a.Reason+" "+bracketed(a.Place)))
	}
	t.more(s.Left)
}

func (s *AnnouncedSummary) counts() string {
	var parts []string
	for _, means := range slices.Sorted(maps.Keys(s.Count)) {
		parts = append(parts, fmt.Sprintf("%s by %s", Counted(s.Count[means], "address"), means))
	}
	if n := len(s.Withheld) + s.Left; n > 0 || len(parts) == 0 {
		parts = append(parts, Grouped(n)+" not")
	}
	return strings.Join(parts, ", ")
}

// session writes a row for a session.
func (t *table) session(x announcer.Session) {
	state := x.State
	if !x.Up() {
		state = strings.ToUpper(state)
	}
	cells := []string{"  router " + x.Peer.String(), fmt.Sprintf("AS %d", x.AS), state + " for " + Age(t.now, x.Since), Counted(x.IPv4.Announced+x.IPv6.Announced, "route")}
	t.row(append(cells, x.Why())...)
}

// announcedRows writes a row for each address, and why it is not announced.
func (t *table) announcedRows(list []report.AnnouncedAddress) {
	if len(list) == 0 {
		return
	}
	t.line("")
	t.row("ANNOUNCED", "BY", "STATE")
	for _, a := range list {
		state := "announced"
		if !a.Announced {
			state = "NOT"
		}
		t.row(a.Address.String(), a.Means, strings.TrimSpace(state+"  "+a.Reason))
	}
}

// first returns the first of list, and adds to left how many it leaves out.
func first[T any](list []T, most int, left *int) []T {
	if n := len(list) - most; n > 0 {
		*left += n
		return list[:most]
	}
	return list
}
