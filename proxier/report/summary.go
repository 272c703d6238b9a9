package report

import (
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Summary says of a Loop what a Status says, in a size that does not grow with the
// number of services. Counts has numbers only, of services and endpoints.
type Summary struct {
	Totals
	Problems     []Problem // the first ones, by name of the service
	MoreProblems int
	Warnings     []string // of services
	MoreWarnings int
	Refusals     []claims.Refusal
}

// Totals are how many services and addresses there are, and how families do.
type Totals struct {
	Services int            `json:"services"`
	Disabled int            `json:"disabled_services,omitempty"` // of those, by their files
	Actions  map[string]int `json:"addresses"`                   // how many addresses and ports, by FrontendStatus.Action
	Families []FamilyStatus `json:"families"`
}

// A Problem is one thing that does not work as it should.
type Problem struct {
	Subject string `json:"subject"`           // a service, a family, a source, "host" or "svcproxy"
	Address string `json:"address,omitempty"` // of a service
	State   string `json:"state,omitempty"`   // in a word or two
	Reason  string `json:"reason,omitempty"`
	Place   string `json:"place,omitempty"` // where it is written, as "web.toml:1:1"
}

// Summarize counts what StatusOf returns, and names at most so many problems, and as many
// warnings: an address is a problem that does not serve though the kernel holds what it should, or serves by endpoints that
// all fail their check. It costs one look at each address, and one at each endpoint for the warnings.
func Summarize(s *Snapshot, most int) Summary {
	sum := Summary{Totals: Totals{Families: familyStatuses(s), Services: len(s.Services), Actions: make(map[string]int)}, Refusals: s.Refused}
	suspect := doubtsOf(s, nil)
	for _, u := range used(s, nil) {
		sum.Disabled += toInt(u.Disabled)
		warnings := suspect[u.Key]
		for _, r := range u.families {
			if r.Resolved != nil {
				warnings = append(warnings, r.Warnings...)
			}
		}
		slices.Sort(warnings)
		for _, w := range warnings {
			keepFirst(&sum.Warnings, &sum.MoreWarnings, most, "service "+u.Key.String()+": "+w)
		}
		for _, f := range Runs(u.count(s.Node, sum.Actions)) {
			if len(sum.Problems) < most && f.AllFailed != "" {
				f.Reason += u.lastAnswer(s)
			}
			keepFirst(&sum.Problems, &sum.MoreProblems, most, Problem{u.Key.String(), f.Address, f.Trouble(), f.Reason, writtenAt(u.Service)})
		}
	}
	return sum
}

// count counts the actions of the frontends, and returns those that are a problem.
func (u *usedService) count(node *policy.Node, actions map[string]int) (idle []FrontendStatus) {
	fails := len(u.Conditions) > 0 && u.AllFail() != ""
	for _, r := range u.families {
		for _, f := range r.AllFrontends() {
			action, _ := r.action(f)
			actions[action]++
			if action != pending && (action != policy.Balance.String() || fails && u.AllFailAt(f) != "") {
				idle = append(idle, u.frontendStatus(r, f, node))
			}
		}
	}
	return idle
}

// keepFirst appends a value to a list of at most so many, or counts it.
func keepFirst[T any](list *[]T, more *int, most int, v T) {
	if len(*list) < most {
		*list = append(*list, v)
	} else {
		*more++
	}
}

// lastAnswer returns what the first endpoint that fails its check answered.
func (u *usedService) lastAnswer(s *Snapshot) string {
	known := s.details(u.Subject)
	for i := range u.Endpoints {
		e := &u.Endpoints[i]
		if d := known[u.EndpointAt(e)]; policy.StateOf(u.Subject, e) == policy.Down && d.Error != "" {
			return fmt.Sprintf(" (%s: %s)", endpointName(*e), d.Error)
		}
	}
	return ""
}
