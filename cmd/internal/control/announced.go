package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
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
	s := AnnouncedSummary{Sessions: slices.Clone(a.Sessions), Count: make(map[string]int)}
	slices.SortStableFunc(s.Sessions, func(x, y announcer.Session) int { return cmp.Compare(toInt(x.Up()), toInt(y.Up())) })
	for _, row := range a.Addresses {
		if row.Announced {
			s.Count[row.Means]++
		} else {
			s.Withheld = append(s.Withheld, row)
		}
	}
	slices.SortStableFunc(s.Withheld, func(x, y report.AnnouncedAddress) int { return cmp.Compare(toInt(x.Unheard()), toInt(y.Unheard())) })
	s.Withheld = first(s.Withheld, most, &s.Left)
	return s
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
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
		t.row("  and " + counted(more, "more router") + ": svcproxy status -o wide")
	}
	for _, a := range s.Withheld {
		t.withheld(a)
	}
	t.more(s.Left)
}

func (s *AnnouncedSummary) counts() string {
	var parts []string
	for _, means := range slices.Sorted(maps.Keys(s.Count)) {
		parts = append(parts, fmt.Sprintf("%s by %s", counted(s.Count[means], "address"), means))
	}
	if n := len(s.Withheld) + s.Left; n > 0 || len(parts) == 0 {
		parts = append(parts, grouped(n)+" not")
	}
	return strings.Join(parts, ", ")
}

// session writes a row for a session.
func (t *table) session(x announcer.Session) {
	state := x.State
	if !x.Up() {
		state = strings.ToUpper(state)
	}
	cells := []string{"  router " + x.Peer.String(), fmt.Sprintf("AS %d", x.AS), state + " for " + age(t.now, x.Since), counted(x.IPv4.Announced+x.IPv6.Announced, "route")}
	t.row(append(cells, x.Why())...)
}

func (t *table) withheld(a report.AnnouncedAddress) {
	t.row("  "+a.Address.String(), a.Means, "NOT", strings.TrimSpace(a.Reason+" "+bracketed(a.Place)))
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

// announcedAll writes all of it.
func (t *table) announcedAll(a *Announced) {
	if len(a.Sessions) > 0 {
		t.line("")
		t.row("ROUTERS")
		for _, s := range a.Sessions {
			t.session(s)
		}
	}
	t.announcedRows(a.Addresses)
}

// first returns the first of list, and adds to left how many it leaves out.
func first[T any](list []T, most int, left *int) []T {
	if n := len(list) - most; n > 0 {
		*left += n
		return list[:most]
	}
	return list
}
