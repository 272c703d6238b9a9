package report

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Summary says of a Loop what a Status says, in a size that does not grow with the
// number of services. Counts has numbers only, of services and endpoints.
type Summary struct {
	Families []FamilyStatus `json:"families"`
	Services int            `json:"services"`
	Disabled int            `json:"disabled_services,omitempty"` // of those
	Actions  map[string]int `json:"addresses"`                   // how many addresses and ports, by FrontendStatus.Action

	Problems     []AddressProblem `json:"address_problems,omitempty"` // the first ones, by name of the service
	MoreProblems int              `json:"more_address_problems,omitempty"`
	Warnings     []string         `json:"service_warnings,omitempty"` // of services
	MoreWarnings int              `json:"more_service_warnings,omitempty"`

	Refusals []claims.Refusal `json:"-"`
}

// An AddressProblem is an address and port that does not serve, though the kernel holds what it should,
// or serves by endpoints that all fail their check.
type AddressProblem struct {
	Service string `json:"service"`
	FrontendStatus
	Place string `json:"place,omitempty"` // where the service is written
}

// Summarize counts what StatusOf returns, and names at most so many problems, and as many
// warnings. What it costs grows with the services by no
// more than one look at each of their addresses, and one at each endpoint for the warnings.
func Summarize(s *Snapshot, most int) Summary {
	sum := Summary{Families: familyStatuses(s), Services: len(s.Services), Actions: make(map[string]int), Refusals: s.Refused}
	failing := make(map[source.Key]policy.Subject) // all endpoints of these fail their check
	for _, svc := range s.Services {
		sum.Disabled += toInt(svc.Disabled)
		if len(svc.Conditions) > 0 && svc.AllFail() != "" {
			failing[svc.Key] = svc.Subject
		}
	}
	idle := smallest[idleFrontend]{most: most, compare: idleFrontend.compare}
	warnings := smallest[serviceWarning]{most: most, compare: serviceWarning.compare}
	for i := range s.Syncs {
		s.Syncs[i].summarize(sum.Actions, failing, &idle, &warnings)
	}
	for _, d := range Doubts(s, nil) {
		warnings.add(serviceWarning{d.Key, d.String()})
	}
	sum.Problems, sum.MoreProblems = s.explain(idle.list), idle.more
	for _, w := range warnings.list {
		sum.Warnings = append(sum.Warnings, "service "+w.key.String()+": "+w.text)
	}
	sum.MoreWarnings = warnings.more
	return sum
}

// summarize adds what f has made of services; of the failing ones endpoints all fail their check.
func (f *Family) summarize(actions map[string]int, failing map[source.Key]policy.Subject, idle *smallest[idleFrontend], warnings *smallest[serviceWarning]) {
	var list []idleFrontend // of one service
	for _, r := range f.Resolved {
		list = list[:0]
		s, fails := failing[r.Key]
		for _, fe := range r.Frontends {
			action, _ := actionOf(fe, f.holdsFrontend(r.Key, fe), f.Unserved)
			actions[action]++
			if action != pending && (action != policy.Balance.String() || fails && s.AllFailAt(fe) != "") {
				list = append(list, idleFrontend{fe, action, f.Unserved, 0})
			}
		}
		for _, i := range runs(list, (*idleFrontend).alike, (*idleFrontend).through) {
			idle.add(i)
		}
		for _, w := range r.Warnings {
			warnings.add(serviceWarning{r.Key, w})
		}
	}
}

// explain says why frontends are idle.
func (s *Snapshot) explain(list []idleFrontend) (out []AddressProblem) {
	subjects := make(map[source.Key]policy.Subject, len(list))
	for _, f := range list {
		subjects[f.ServicePort.Key] = policy.Subject{}
	}
	for _, svc := range s.Services {
		if _, wanted := subjects[svc.Key]; wanted {
			subjects[svc.Key] = svc.Subject
		}
	}
	for _, f := range list {
		svc := subjects[f.ServicePort.Key]
		p := AddressProblem{Service: f.ServicePort.Key.String(), FrontendStatus: frontendStatus(f.Frontend, true, f.unserved, svc, s.Node)}
		if f.last > 0 {
			p.Address = portsTo(p.Address, f.last)
		}
		if svc.Service != nil {
			p.Place = writtenAt(svc.Service)
			p.Reason += lastAnswer(svc, s.details(svc), p.FrontendStatus)
		}
		out = append(out, p)
	}
	return out
}

// lastAnswer returns what one of the endpoints that fail their check answered, where that is why
// an address does not serve as it should.
func lastAnswer(s policy.Subject, known map[netip.AddrPort]policy.Detail, f FrontendStatus) string {
	if f.AllFailed == "" {
		return ""
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if d := known[s.EndpointAt(e)]; policy.StateOf(s, e) == policy.Down && d.Error != "" {
			return fmt.Sprintf(" (%s: %s)", endpointName(*e), d.Error)
		}
	}
	return ""
}

// An idleFrontend is one that does not serve as it should.
type idleFrontend struct {
	*policy.Frontend
	action   string
	unserved *proxier.PartialError
	last     uint16 // of ports in a row that are alike; 0: it is one
}

// An idleAlike is what idle frontends of a service have in common that one line tells of.
type idleAlike struct {
	policy.FrontendKey // without the port
	action             string
	targets            int
}

func (i *idleFrontend) alike() (idleAlike, uint16) {
	like := idleAlike{i.Key, i.action, len(i.Outside.Pool.Targets)}
	like.Port = 0
	return like, i.Key.Port
}

func (i *idleFrontend) through(last uint16) { i.last = last }

func (i idleFrontend) compare(o idleFrontend) int {
	return cmp.Or(i.ServicePort.Key.Compare(o.ServicePort.Key), i.Key.Compare(o.Key))
}

type serviceWarning struct {
	key  source.Key
	text string
}

func (w serviceWarning) compare(o serviceWarning) int {
	return cmp.Or(w.key.Compare(o.key), cmp.Compare(w.text, o.text))
}

// writtenAt returns where a service is written; empty: that is not known.
func writtenAt(svc *source.Service) string {
	if svc.Pos.File == "" {
		return ""
	}
	return svc.Pos.String()
}

// smallest keeps the smallest of many values, in order, and counts the others.
type smallest[T any] struct {
	most    int
	compare func(a, b T) int
	list    []T
	more    int
}

func (s *smallest[T]) add(v T) {
	if n := len(s.list); n >= s.most {
		s.more++
		if n == 0 || s.compare(v, s.list[n-1]) >= 0 {
			return
		}
		s.list = s.list[:n-1]
	}
	i, _ := slices.BinarySearchFunc(s.list, v, s.compare)
	s.list = slices.Insert(s.list, i, v)
}
