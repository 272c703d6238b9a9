package read

import (
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/internal/parallel"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A binding is a service that was bound to a list.
type binding struct {
	Service  *source.Service
	problems []source.Problem
	Faults   []source.Fault // those, with their places; nil: not placed yet
}

// Bindings are what is known of a file and the lists that it refers to: services are not bound
// again while neither they nor their list have changed.
type Bindings map[BindingKey]binding

// A BindingKey names a binding.
type BindingKey struct {
	Service *source.Service // as it was read
	List    *EndpointList
}

// A Lookup returns the list of a name, or why there is none.
type Lookup func(name string) (l *EndpointList, why string)

// A BindResult is what came of binding a file to its lists.
type BindResult struct {
	Faults map[string][]source.Fault // by the lists that they are about; those at fault
	Warned []source.Fault
	Known  Bindings
}

// BindVersion binds all services of v that refer to lists. Services that were bound before are in known.
func (rules Rules) BindVersion(v *Version, list Lookup, known Bindings) BindResult {
	b := BindResult{map[string][]source.Fault{}, nil, Bindings{}}
	sum := v.products
	for _, name := range slices.Sorted(maps.Keys(v.Lists)) {
		l, why := list(name)
		if l == nil {
			b.Faults[name] = withoutLists(v, name, why)
			continue
		}
		with, fault := rules.countListed(v, l, name, sum)
		if fault != nil {
			b.Faults[name] = []source.Fault{*fault}
			continue
		}
		sum = with
		rules.bindList(v, l, name, known, b.Known)
		b.note(v, l, name)
	}
	b.Warned = decode.Cap(v.Path, b.Warned)
	if v.Hidden {
		b.Warned = hideWords(b.Warned)
		for name, faults := range b.Faults {
			b.Faults[name] = hideWords(faults)
		}
	}
	return b
}

// countListed adds to a sum what services are multiplied to by the endpoints of a list. The fault is that of the first
// service with which it is more than a file may have.
func (rules Rules) countListed(v *Version, l *EndpointList, name string, sum source.Products) (source.Products, *source.Fault) {
	limits, endpoints := rules.Limits.Products(), source.CountEndpoints(l.All)
	for _, i := range v.Lists[name] {
		s := v.Services[i]
		sum = sum.Minus(s.Products()).Plus(s.ProductsWith(endpoints))
		if p := limits.Exceeded(sum, source.OfFile); p != nil {
			return sum, &source.Fault{Pos: s.EndpointsFromPos(), Msg: p.Msg, Hint: p.Hint}
		}
	}
	return sum, nil
}

// withoutLists returns the faults of services whose list does not exist, up to the fault limit.
func withoutLists(v *Version, name, why string) (faults []source.Fault) {
	for _, i := range v.Lists[name] {
		if faults = append(faults, withoutList(v.Services[i], why)); decode.TooMany(faults) {
			break
		}
	}
	return decode.Cap(v.Path, faults)
}

// withoutList is the fault of a service of which there is no list.
func withoutList(svc *source.Service, why string) source.Fault {
	f := source.Fault{Pos: svc.EndpointsFromPos(), Msg: source.Excerpt(svc.EndpointsFrom) + " " + why}
	if why == LacksList {
		f.Hint = "the file is used once the list is there: [] is one without endpoints"
	}
	return f
}

// bindList binds all services that refer to one list, and notes them in now.
func (rules Rules) bindList(v *Version, l *EndpointList, name string, known, now Bindings) {
	var missing []BindingKey
	for _, i := range v.Lists[name] {
		key := BindingKey{v.Services[i], l}
		if found, ok := known[key]; ok {
			now[key] = found
		} else {
			missing = append(missing, key)
		}
	}
	found := make([]binding, len(missing))
	parallel.Do(len(missing), func(i int) {
		found[i].Service, found[i].problems = rules.bind(missing[i].Service, l)
	})
	for i, key := range missing {
		now[key] = found[i]
	}
}

// note notes what is wrong with the services of v that are bound to l, as far as anyone reads it.
func (b *BindResult) note(v *Version, l *EndpointList, name string) {
	var bad, good placing // good: there are warnings only
	p := placing{list: l}
	for _, i := range v.Lists[name] {
		key := BindingKey{v.Services[i], l}
		found := b.Known[key]
		if len(found.problems) == 0 {
			continue
		}
		of := &good
		if anyFatal(found.problems) {
			of = &bad
		}
		if of.problems > mostPlaced {
			continue
		}
		of.keys, of.problems = append(of.keys, key), of.problems+len(found.problems)
		if found.Faults == nil {
			p.keys = append(p.keys, key)
		}
	}
	p.place(b.Known)
	for _, key := range bad.keys {
		b.Faults[name] = append(b.Faults[name], b.Known[key].Faults...)
	}
	if len(bad.keys) > 0 {
		b.Faults[name] = decode.Cap(v.Path, b.Faults[name])
	}
	for _, key := range good.keys {
		if !decode.TooMany(b.Warned) {
			b.Warned = append(b.Warned, b.Known[key].Faults...)
		}
	}
}

// A placing is of problems of services that are bound to a list, which have no place yet.
type placing struct {
	list     *EndpointList
	keys     []BindingKey
	problems int
}

// place makes faults of the problems of bindings: of an endpoint where that stands, others where the service refers
// to the list. The text of the list is read once for all of them, and only if a problem is one of an endpoint.
func (p *placing) place(known Bindings) {
	var paths []source.Path
	for _, key := range p.keys {
		for _, problem := range known[key].problems {
			if problem.Path.Under(source.At(ListKey)) {
				paths = append(paths, problem.Path)
			}
		}
	}
	var at []source.Position
	if len(paths) > 0 {
		at = p.list.Positions(paths)
	}
	for _, key := range p.keys {
		b := known[key]
		if b.Faults, at = faultsOf(key.Service, b.problems, at); p.list.hidden {
			b.Faults = hideWords(b.Faults)
		}
		known[key] = b
	}
}

// mostPlaced is how many problems of services with one list are placed, and as many of those with warnings only: more
// than decode.Cap keeps.
const mostPlaced = 1000

// Services returns those of v as they are bound. loose is called for one that cannot be.
func (b *BindResult) Services(v *Version, list Lookup, loose func(*source.Service, *EndpointList) *source.Service) []*source.Service {
	out := slices.Clone(v.Services)
	for name, indexes := range v.Lists {
		l, _ := list(name)
		for _, i := range indexes {
			svc := v.Services[i]
			if found, ok := b.Known[BindingKey{svc, l}]; ok && !anyFatal(found.problems) {
				out[i] = found.Service
			} else {
				out[i] = loose(svc, l)
			}
		}
	}
	return out
}

// FirstFault says in a few words why a file does not fit its lists; empty: it does.
func (b *BindResult) FirstFault() string {
	for _, name := range slices.Sorted(maps.Keys(b.Faults)) {
		if f := source.FirstError(b.Faults[name]); f != nil {
			return f.String()
		}
	}
	return ""
}

// LacksList is why there is no list of a name.
const LacksList = "is no file of this directory"

// HeldList is why there is none although the file is there, and good.
const HeldList = "is held, and waits for svcproxy apply or svcproxy confirm"

// BrokenList is why there is none although the file is there.
func BrokenList(v *Version) string {
	if f := source.FirstError(v.Faults); f != nil {
		return fmt.Sprintf("cannot be used, and no good version of it is known: %s", f)
	}
	return LacksList
}
