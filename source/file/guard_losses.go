package file

import (
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// lostEndpoints returns what was of a service and is no more.
func lostEndpoints(was, is *source.Service) (lost []endpointID) {
	if slices.EqualFunc(was.Endpoints, is.Endpoints, func(a, b source.Endpoint) bool { return a.Addr == b.Addr && a.Disabled == b.Disabled }) {
		return nil
	}
	left, seen := map[netip.Addr]int{}, map[netip.Addr]int{}
	for _, e := range is.Endpoints {
		if !e.Disabled {
			left[e.Addr]++
		}
	}
	for _, e := range was.Endpoints {
		if e.Disabled {
			continue
		}
		if seen[e.Addr]++; seen[e.Addr] > left[e.Addr] {
			lost = append(lost, endpointID{e.Addr, seen[e.Addr]})
		}
	}
	return lost
}

// A removal is what a version takes away of what its file has in use: deletes or disables.
type removal struct {
	services  []source.Key
	endpoints []loss
}

// A loss is what a service loses of its endpoints.
type loss struct {
	key  source.Key
	of   int // how many it has
	lost []endpointID
}

// A judgement of a plan finds out which of its files the guard holds. It compares what is in use with what would be: where
// a list does not fit a service that loses nothing.
type judgement struct {
	*plan
	guard   Guard
	removed *recentRemovals
	now     time.Time
	total   int // services in use
	after   map[source.Key]*source.Service
	takes   map[*state]*removal
	verdict map[*state]string // why a file is held
}

// To the guard it is a list that takes its endpoints away from services. A file that takes its endpoints from elsewhere than
// before answers for what it loses.

// removals finds out what files take away, those that only refer to a list of the plan too.
func (j *judgement) removals() {
	for _, f := range j.changing() {
		for _, was := range f.services() {
			if was.Disabled {
				continue
			}
			is := j.after[was.Key]
			if is == nil {
				j.takenBy(f).services = append(j.takenBy(f).services, was.Key)
			} else if lost := lostEndpoints(was, is); len(lost) > 0 {
				by := j.takenBy(j.taker(f, was, is))
				by.endpoints = append(by.endpoints, loss{was.Key, enabledEndpoints(was), lost})
			}
		}
	}
}

// changing returns the files of services in a plan, and those that refer to a list in it.
func (j *judgement) changing() (files []*state) {
	lists := map[string]bool{}
	for f := range j.next {
		if f.isList() {
			lists[f.name] = true
		} else {
			files = append(files, f)
		}
	}
	users := slices.DeleteFunc(j.usersOf(lists), func(f *state) bool { return j.next[f] != nil })
	return append(files, users...)
}

// taker returns the file that takes endpoints away from a service of f: the list, if that is planned.
func (j *judgement) taker(f *state, was, is *source.Service) *state {
	if l := j.files[was.EndpointsFrom]; was.EndpointsFrom == is.EndpointsFrom && j.next[l] != nil {
		return l
	}
	if j.next[f] != nil {
		return f
	}
	for _, name := range sortedNames(f.good.Lists) { // one that made room for the list of the service
		if l := j.files[name]; j.next[l] != nil {
			return l
		}
	}
	return f
}

func (j *judgement) takenBy(f *state) *removal {
	if j.takes[f] == nil {
		j.takes[f] = &removal{}
	}
	return j.takes[f]
}

// enabledEndpoints returns how many endpoints of a service are not disabled.
func enabledEndpoints(s *source.Service) (n int) {
	for i := range s.Endpoints {
		if !s.Endpoints[i].Disabled {
			n++
		}
	}
	return n
}
