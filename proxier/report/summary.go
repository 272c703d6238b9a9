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
// all fail their check. It costs one look at each address, and one at each endpoint for the warnings; only services with
// either are put in order, and only as many are explained as are named, except for those of many ports.
func Summarize(s *Snapshot, most int) Summary {
	sum := Summary{Totals: Totals{Families: familyStatuses(s), Services: len(s.Services), Actions: make(map[string]int)}, Refusals: s.Refused}
	suspect := doubtsOf(s, nil)
	var odd []oddService
	list := used(s, nil)
	for i := range list {
		u := oddService{usedService: &list[i], warnings: suspect[list[i].Key]}
		sum.Disabled += toInt(u.Disabled)
		u.count(sum.Actions)
		for _, r := range u.families {
			if r.Resolved != nil {
				u.warnings = append(u.warnings, r.Warnings...)
			}
		}
		if len(u.idle)+len(u.warnings) > 0 {
			odd = append(odd, u)
		}
	}
	slices.SortFunc(odd, func(a, b oddService) int { return a.Key.Compare(b.Key) })
	for _, u := range odd {
		slices.Sort(u.warnings)
		for _, w := range u.warnings {
			keepFirst(&sum.Warnings, &sum.MoreWarnings, most, "service "+u.Key.String()+": "+w)
		}
		if len(sum.Problems) >= most && len(u.idle) < minRun { // a line each
			sum.MoreProblems += len(u.idle)
			continue
		}
		for _, f := range Runs(u.idleStatuses(s.Node)) {
			if len(sum.Problems) < most && f.AllFailed != "" {
				f.Reason += u.lastAnswer(s)
			}
			keepFirst(&sum.Problems, &sum.MoreProblems, most, Problem{u.Key.String(), f.Address, f.Trouble(), f.Reason, writtenAt(u.Service)})
		}
	}
	return sum
}

// An oddService is one with what a Summary names.
type oddService struct {
	*usedService
	idle     []idleFrontend
	warnings []string
}

// An idleFrontend does not serve as it should.
type idleFrontend struct {
	inFamily
	*policy.Frontend
}

// count counts the actions of the frontends, and keeps those that are a problem.
func (u *oddService) count(actions map[string]int) {
	fails := len(u.Conditions) > 0 && u.AllFail() != ""
	for _, r := range u.families {
		for _, f := range r.AllFrontends() {
			action, _ := r.action(f)
			actions[action]++
			if action != pending && (action != policy.Balance.String() || fails && u.AllFailAt(f) != "") {
				u.idle = append(u.idle, idleFrontend{r, f})
			}
		}
	}
}

func (u *oddService) idleStatuses(node *policy.Node) (list []FrontendStatus) {
	for _, f := range u.idle {
		list = append(list, u.frontendStatus(f.inFamily, f.Frontend, node))
	}
	return list
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
