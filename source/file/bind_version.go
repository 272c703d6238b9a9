package file

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
)

// A binding is a service that was bound to a list.
type binding struct {
	service  *source.Service
	problems []source.Problem
}

// bindings are what is known of a file and the lists that it refers to: services are not bound
// again while neither they nor their list have changed.
type bindings map[bindingKey]binding

type bindingKey struct {
	service *source.Service // as it was read
	list    *endpointList
}

// A lookup returns the list of a name, or why there is none.
type lookup func(name string) (l *endpointList, why string)

// A bound file is one with the endpoints of its lists.
type bound struct {
	faults map[string][]source.Fault // by the lists that they are about; those at fault
	warned []source.Fault
	known  bindings
}

// bindVersion binds all services of v that refer to lists. Services that were bound before are in known.
func (rules Rules) bindVersion(v *version, list lookup, known bindings) bound {
	b := bound{map[string][]source.Fault{}, nil, bindings{}}
	for _, name := range slices.Sorted(maps.Keys(v.lists)) {
		l, why := list(name)
		if l != nil {
			rules.bindList(v, l, name, known, b.known)
		}
		for _, i := range v.lists[name] {
			if svc := v.services[i]; l == nil {
				b.faults[name] = append(b.faults[name], withoutList(svc, why))
			} else {
				b.note(name, bindingKey{svc, l})
			}
			if decode.TooMany(b.faults[name]) {
				b.faults[name] = decode.Cap(v.path, b.faults[name])
				break // nobody reads more
			}
		}
	}
	return b
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
	inParallel(len(missing), func(i int) {
		found[i].service, found[i].problems = rules.bind(missing[i].service, l)
	})
	for i, key := range missing {
		now[key] = found[i]
	}
}

// note notes what is wrong with a service that is bound.
func (b *bound) note(name string, key bindingKey) {
	problems := b.known[key].problems
	if len(problems) == 0 {
		return
	}
	if faults := key.list.place(key.service, problems); anyError(faults) {
		b.faults[name] = append(b.faults[name], faults...)
	} else {
		b.warned = append(b.warned, faults...)
	}
}

// services returns those of v as they are bound. loose is called for one that cannot be.
func (b *bound) services(v *version, list lookup, loose func(*source.Service, *endpointList) *source.Service) []*source.Service {
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
func (b *bound) firstFault() string {
	for _, name := range slices.Sorted(maps.Keys(b.faults)) {
		for _, f := range b.faults[name] {
			if !f.Warning {
				return f.String()
			}
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
	for _, f := range v.faults {
		if !f.Warning {
			return fmt.Sprintf("cannot be used, and no good version of it is known: %s", f)
		}
	}
	return lacksList
}

// unusedList is the warning of a file of endpoints that no service refers to.
func unusedList(path string) source.Fault {
	return source.Fault{
		Pos: source.Position{File: path}, Msg: "no service refers to this file of endpoints",
		Hint: fmt.Sprintf("write endpoints_from = %s in the service that it is for", source.Excerpt(filepath.Base(path))), Warning: true,
	}
}
