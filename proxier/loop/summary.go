package loop

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

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

// Summary counts what Status returns, and names at most so many problems, and as many
// warnings. It may be called like Status. What it costs grows with the services by no
// more than one look at each of their addresses, and one at each endpoint for the warnings.
func (l *Loop) Summary(most int) Summary {
	s := Summary{Actions: make(map[string]int)}
	l.mu.RLock()
	node, families, waiting := l.node, slices.Clone(l.families), strings.Join(l.unread(), ", ")
	s.Refusals = l.tracker.Refusals()
	l.tracker.Services(func(svc *source.Service, _ source.UnitID) {
		s.Services++
		s.Disabled += toInt(svc.Disabled)
	})
	failing := maps.Clone(l.allFail)
	l.mu.RUnlock()
	idle := smallest[idleFrontend]{most: most, compare: idleFrontend.compare}
	warnings := smallest[serviceWarning]{most: most, compare: serviceWarning.compare}
	for _, f := range families {
		fs := f.status(nil)
		fs.Waiting = waiting
		s.Families = append(s.Families, fs)
		f.summarize(s.Actions, failing, &idle, &warnings)
	}
	for _, d := range l.Doubts() {
		warnings.add(serviceWarning{d.Key, d.String()})
	}
	s.Problems, s.MoreProblems = l.explain(idle.list, node), idle.more
	for _, w := range warnings.list {
		s.Warnings = append(s.Warnings, "service "+w.key.String()+": "+w.text)
	}
	s.MoreWarnings = warnings.more
	return s
}

// summarize adds what f has made of services; of the failing ones endpoints all fail their check.
func (f *family) summarize(actions map[string]int, failing map[source.Key]policy.Subject, idle *smallest[idleFrontend], warnings *smallest[serviceWarning]) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	var list []idleFrontend // of one service
	for key, r := range f.allResolved() {
		held := f.holding(key)
		list = list[:0]
		s, fails := failing[key]
		for _, fe := range r.Frontends {
			action, _ := actionOf(fe, held(fe), f.news.unserved)
			actions[action]++
			if action != pending && (action != policy.Balance.String() || fails && s.AllFailAt(fe) != "") {
				list = append(list, idleFrontend{fe, action, f.news.unserved, 0})
			}
		}
		for _, i := range runs(list, (*idleFrontend).alike, (*idleFrontend).through) {
			idle.add(i)
		}
		for _, w := range r.Warnings {
			warnings.add(serviceWarning{key, w})
		}
	}
}

// explain says why frontends are idle.
func (l *Loop) explain(list []idleFrontend, node *policy.Node) []AddressProblem {
	subjects := make([]policy.Subject, len(list))
	l.mu.RLock()
	for i, f := range list {
		if svc := l.tracker.InUse(f.ServicePort.Key); svc != nil {
			subjects[i] = l.subject(svc)
		}
	}
	l.mu.RUnlock()
	var out []AddressProblem
	for i, f := range list {
		p := AddressProblem{Service: f.ServicePort.Key.String(), FrontendStatus: frontendStatus(f.Frontend, true, f.unserved, subjects[i], node)}
		if f.last > 0 {
			p.Address = portsTo(p.Address, f.last)
		}
		if s := subjects[i]; s.Service != nil {
			p.Place = writtenAt(s.Service)
			p.Reason += lastAnswer(s, l.details(s), p.FrontendStatus)
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
