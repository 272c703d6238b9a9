//go:build !nokubernetes

package kubernetes

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/remote"
)

// An entry is what there is under the name of one service.
type entry struct {
	svc     *source.Service // nil: there are slices only
	created int64           // ns since 1970; 0: not known
	notes   notes           // what of the object is not used
	slices  []*slice        // in order of their names
	used    remote.Handed
	changed []time.Time // when slices were, since used was handed on
}

// entries are those under all names, and what was handed on of them.
type entries struct {
	out    *remote.Publisher
	all    map[source.Key]*entry
	owners map[source.Key]source.Key // of each slice, by the name of its service
}

// entry returns that of a name, and has it looked at; now: at once.
func (es *entries) entry(key source.Key, now bool) *entry {
	e := es.all[key]
	if e == nil {
		e = &entry{}
		es.all[key] = e
	}
	es.out.Touch(key, now)
	return e
}

// setService takes a service as it is now; nil: there is none to serve.
func (es *entries) setService(key source.Key, svc *service) {
	e := es.entry(key, true)
	if svc == nil {
		e.svc, e.notes = nil, notes{}
		return
	}
	e.svc, e.created, e.notes = svc.Service, svc.created, svc.notes
}

// setSlice takes a slice as it is now; nil: it is gone, or of no service.
func (es *entries) setSlice(key source.Key, s *slice) {
	if owner, had := es.owners[key]; had && (s == nil || s.service != owner) {
		es.entry(owner, false).remove(key.Name)
		delete(es.owners, key)
	}
	if s != nil {
		es.entry(s.service, false).put(s)
		es.owners[key] = s.service
	}
}

func (e *entry) find(name string) (int, bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *slice, name string) int { return strings.Compare(s.name, name) })
}

// maxChanged is how many changes of one service are timed that are handed on together.
const maxChanged = 100

func (e *entry) put(s *slice) {
	i, found := e.find(s.name)
	if !found {
		e.slices = slices.Insert(e.slices, i, nil)
	}
	if old := e.slices[i]; !s.changed.IsZero() && (old == nil || !old.changed.Equal(s.changed)) && len(e.changed) < maxChanged {
		e.changed = append(e.changed, s.changed)
	}
	e.slices[i] = s
}

func (e *entry) remove(name string) {
	if i, found := e.find(name); found {
		e.slices = slices.Delete(e.slices, i, i+1)
	}
}

// look hands on what became of one name.
func (es *entries) look(key source.Key, now time.Time, hurry bool) {
	e := es.all[key]
	if e.svc == nil {
		es.out.Remove(key, &e.used)
		if len(e.slices) == 0 {
			delete(es.all, key)
		}
		return
	}
	next, unused := merge(e.svc, e.slices)
	if es.out.Set(&e.used, remote.Handed{Since: e.created, Service: next, Changed: e.changed}, e.warnings(unused), now, hurry) {
		e.svc, e.changed = next, nil // one copy
		e.share()
	} else if e.used.Service != nil && e.used.Service.Equal(next) {
		e.changed = nil // they changed nothing
	}
}

// share makes the only slice use the endpoints that were handed on, where they
// say all that it said.
func (e *entry) share() {
	if len(e.slices) == 1 && len(e.slices[0].endpoints) == len(e.used.Service.Endpoints) {
		e.slices[0].endpoints = e.used.Service.Endpoints
	}
}

// warnings say what is not used of the service, of its slices, and of both together.
func (e *entry) warnings(merged notes) []source.Fault {
	var out []source.Fault
	add := func(n *notes) {
		for _, line := range n.all() {
			out = append(out, source.Fault{Msg: fmt.Sprintf("service %q: %s", e.svc.Key, line), Warning: true})
		}
	}
	add(&e.notes)
	for _, s := range e.slices {
		add(&s.notes)
	}
	add(&merged)
	return out
}
