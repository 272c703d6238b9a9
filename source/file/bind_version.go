package file

import (
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/internal/parallel"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A lookup returns the list of a name, or why there is none.
type lookup func(name string) (l *endpointList, why string)

// A bindResult is what came of binding a file to its lists.
type bindResult struct {
	faults map[string][]source.Fault // by the lists that they are about; those at fault
	warned []source.Fault
	known  bindings
}

// bindVersion binds all services of v that refer to lists. Services that were bound before are in known.
func (rules Rules) bindVersion(v *version, list lookup, known bindings) bindResult {
	b := bindResult{map[string][]source.Fault{}, nil, bindings{}}
	sum := v.products
	for _, name := range slices.Sorted(maps.Keys(v.lists)) {
		l, why := list(name)
		if l == nil {
			b.faults[name] = withoutLists(v, name, why)
			continue
		}
		with, fault := rules.countListed(v, l, name, sum)
		if fault != nil {
			b.faults[name] = []source.Fault{*fault}
			continue
		}
		sum = with
		rules.bindList(v, l, name, known, b.known)
		b.note(v, l, name)
	}
	b.warned = decode.Cap(v.path, b.warned)
	if v.hidden {
		b.warned = hideWords(b.warned)
		for name, faults := range b.faults {
			b.faults[name] = hideWords(faults)
		}
	}
	return b
}

// countListed adds to a sum what services are multiplied to by the endpoints of a list. The fault is that of the first
// service with which it is more than a file may have.
func (rules Rules) countListed(v *version, l *endpointList, name string, sum source.Products) (source.Products, *source.Fault) {
	limits, endpoints := rules.Limits.Products(), source.CountEndpoints(l.all)
	for _, i := range v.lists[name] {
		s := v.services[i]
		sum = sum.Minus(s.Products()).Plus(s.ProductsOf(source.CountPorts(s.Ports), endpoints))
		if e := limits.Exceeded(sum); e != nil {
			p := e.Problem(source.OfFile)
			return sum, &source.Fault{Pos: s.EndpointsFromPos(), Msg: p.Msg, Hint: p.Hint}
		}
	}
	return sum, nil
}

// withoutLists are the faults of services that refer to a list which there is not, as many as anyone reads.
func withoutLists(v *version, name, why string) (faults []source.Fault) {
	for _, i := range v.lists[name] {
		if faults = append(faults, withoutList(v.services[i], why)); decode.TooMany(faults) {
			break
		}
	}
	return decode.Cap(v.path, faults)
}

// withoutList is the fault of a service of which there is no list.
func withoutList(svc *source.Service, why string) source.Fault {
	f := source.Fault{Pos: svc.EndpointsFromPos(), Msg: source.Excerpt(svc.EndpointsFrom) + " " + why}
	if why == lacksList {
		f.Hint = "the file is used once the list is there: [] is one without endpoints"
	}
	return f
}

// bindList binds all services that refer to one list, and notes them in now.
func (rules Rules) bindList(v *version, l *endpointList, name string, known, now bindings) {
	var missing []bindingKey
	for _, i := range v.lists[name] {
		key := bindingKey{v.services[i], l}
		if found, ok := known[key]; ok {
			now[key] = found
		} else {
			missing = append(missing, key)
		}
	}
	found := make([]binding, len(missing))
	parallel.Do(len(missing), func(i int) {
		found[i].service, found[i].problems = rules.bind(missing[i].service, l)
	})
	for i, key := range missing {
		now[key] = found[i]
	}
}

// note notes what is wrong with the services of v that are bound to l, as far as anyone reads it.
func (b *bindResult) note(v *version, l *endpointList, name string) {
	var bad, good placing // good: there are warnings only
	p := placing{list: l}
	for _, i := range v.lists[name] {
		key := bindingKey{v.services[i], l}
		found := b.known[key]
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
		if found.faults == nil {
			p.keys = append(p.keys, key)
		}
	}
	p.place(b.known)
	for _, key := range bad.keys {
		b.faults[name] = append(b.faults[name], b.known[key].faults...)
	}
	if len(bad.keys) > 0 {
		b.faults[name] = decode.Cap(v.path, b.faults[name])
	}
	for _, key := range good.keys {
		if !decode.TooMany(b.warned) {
			b.warned = append(b.warned, b.known[key].faults...)
		}
	}
}

// A placing is of problems of services that are bound to a list, which have no place yet.
type placing struct {
	list     *endpointList
	keys     []bindingKey
	problems int
}

// place makes faults of the problems of bindings: of an endpoint where that stands, others where the service refers
// to the list. The text of the list is read once for all of them, and only if a problem is one of an endpoint.
func (p *placing) place(known bindings) {
	var paths []source.Path
	for _, key := range p.keys {
		for _, problem := range known[key].problems {
			if problem.Path.Under(source.At(listKey)) {
				paths = append(paths, problem.Path)
			}
		}
	}
	var at []source.Position
	if len(paths) > 0 {
		at = p.list.positions(paths)
	}
	for _, key := range p.keys {
		b := known[key]
		if b.faults, at = faultsOf(key.service, b.problems, at); p.list.hidden {
			b.faults = hideWords(b.faults)
		}
		known[key] = b
	}
}

// mostPlaced is how many problems of services with one list are placed, and as many of those with warnings only: more
// than decode.Cap keeps.
const mostPlaced = 1000

// services returns those of v as they are bound. loose is called for one that cannot be.
func (b *bindResult) services(v *version, list lookup, loose func(*source.Service, *endpointList) *source.Service) []*source.Service {
	out := slices.Clone(v.services)
	for name, indexes := range v.lists {
		l, _ := list(name)
		for _, i := range indexes {
			svc := v.services[i]
			if found, ok := b.known[bindingKey{svc, l}]; ok && !anyFatal(found.problems) {
				out[i] = found.service
			} else {
				out[i] = loose(svc, l)
			}
		}
	}
	return out
}

// firstFault says in a few words why a file does not fit its lists; empty: it does.
func (b *bindResult) firstFault() string {
	for _, name := range slices.Sorted(maps.Keys(b.faults)) {
		if f := source.FirstError(b.faults[name]); f != nil {
			return f.String()
		}
	}
	return ""
}

// lacksList is why there is no list of a name.
const lacksList = "is no file of this directory"

// heldList is why there is none although the file is there, and good.
const heldList = "is held, and waits for svcproxy apply or svcproxy confirm"

// brokenList is why there is none although the file is there.
func brokenList(v *version) string {
	if f := source.FirstError(v.faults); f != nil {
		return fmt.Sprintf("cannot be used, and no good version of it is known: %s", f)
	}
	return lacksList
}
