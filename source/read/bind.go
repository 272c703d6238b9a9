package read

import (
	"cmp"
	"fmt"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A service that refers to a file of endpoints is read without them. It is bound to a list once
// both are known: only then all can be said that is wrong with it.

// bind returns a service with the endpoints of a list, and what is wrong with it for these.
func (rules Rules) bind(svc *source.Service, l *EndpointList) (*source.Service, []source.Problem) {
	bound, problems := rules.with(svc, l)
	if len(problems) == 0 {
		return bound, nil
	}
	_, said := rules.with(svc, nil) // where the service is written
	return bound, slices.DeleteFunc(problems, func(p source.Problem) bool {
		return slices.ContainsFunc(said, func(q source.Problem) bool { return p.Msg == q.Msg && slices.Equal(p.Path, q.Path) })
	})
}

// with returns a service with the endpoints of a list, nil: without any, and all that is wrong with it.
func (rules Rules) with(svc *source.Service, l *EndpointList) (*source.Service, []source.Problem) {
	s := service{Service: *svc, written: fromSaved(svc.WrittenPorts), inherited: svc.Inherited}
	s.Endpoints = nil
	r := decode.NewReader(nil)
	if l != nil {
		s.endpoints, s.listed = l.Endpoints, true
	}
	if l != nil && l.sharedBy(&s.written) {
		s.Endpoints = slices.Clip(l.All)
	} else {
		s.setEndpoints(r)
	}
	problems := s.validate(rules.Check)
	for _, p := range problems {
		if key := s.inheritedKey(&p); key != "" {
			p.Hint = ofDefaults(key)
		}
		r.Problem(p)
	}
	if !r.Failed() {
		s.warn(r)
	}
	bound := s.Service
	return &bound, r.Problems()
}

// faultsOf returns problems of a service as faults. Those of endpoints stand at these positions.
func faultsOf(svc *source.Service, problems []source.Problem, at func(source.Path) source.Position) []source.Fault {
	faults := make([]source.Fault, len(problems))
	for i, p := range problems {
		faults[i] = source.Fault{Pos: svc.EndpointsFromPos(), Msg: p.Msg, Hint: p.Hint, Warning: p.Warning}
		if p.Path.Under(source.At(ListKey)) {
			faults[i].Pos = at(p.Path)
			faults[i].Msg = fmt.Sprintf("for service %q (%s): %s", svc.Key, svc.NamePos(), p.Msg)
		}
	}
	slices.SortStableFunc(faults, func(a, b source.Fault) int {
		return cmp.Or(cmp.Compare(a.Pos.File, b.Pos.File), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
	return faults
}
