package file

import (
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
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
	endpoints map[source.Key][]endpointID
}

// A judgement of a step finds out which of its files the guard holds.
type judgement struct {
	*Source
	guard   Guard
	now     time.Time
	total   int // services in use
	after   map[source.Key]*source.Service
	due     map[*state]*read.Version // of the files that are judged
	takes   map[*state]removal
	verdict map[*state]string   // why a file is held
	users   map[string][]*state // the files in use that refer to a list, by its name; nil: not asked for yet
}

// To the guard the endpoints of a list are those of the services that refer to it, and it is the
// list that takes them away. A file that takes its endpoints from elsewhere than before answers for
// what it loses.

// withList returns a service with the endpoints of its list, as that is said by pick.
func (j *judgement) withList(s *source.Service, pick func(*state) *read.Version) *source.Service {
	if s.EndpointsFrom == "" {
		return s
	}
	out := *s
	if f := j.files[s.EndpointsFrom]; f != nil {
		out.Endpoints = listedIn(pick(f))
	}
	return &out
}

func listedIn(v *read.Version) (list []source.Endpoint) {
	if v == nil || v.List == nil {
		return nil
	}
	return v.List.All
}

// afterwards returns what is to be used of a file.
func (j *judgement) afterwards(f *state) *read.Version {
	if v := j.due[f]; v != nil {
		return v
	}
	return f.used
}

// inUse returns what is used of a file.
func (j *judgement) inUse(f *state) *read.Version { return f.good }

// goodServices returns the services whose endpoints are, or were, those of a file.
func (j *judgement) goodServices(f *state) []*source.Service {
	switch {
	case f.good == nil:
		return nil
	case f.good.List != nil:
		return j.usersOf(f)
	case len(f.good.Lists) == 0:
		return f.good.Services
	}
	list := make([]*source.Service, len(f.good.Services))
	for i, s := range f.good.Services {
		list[i] = j.withList(s, j.inUse)
	}
	return list
}

// usersOf returns the services in use that refer to a list, with its endpoints.
func (j *judgement) usersOf(list *state) (users []*source.Service) {
	j.eachUser(list, func(_ *state, s *source.Service) { users = append(users, s) })
	return users
}

// eachUser calls visit with each of them and its file.
func (j *judgement) eachUser(list *state, visit func(*state, *source.Service)) {
	name := filepath.Base(list.path)
	if j.users == nil {
		j.findUsers()
	}
	for _, f := range j.users[name] {
		for _, i := range f.good.Lists[name] {
			visit(f, j.withList(f.good.Services[i], j.inUse))
		}
	}
}

// findUsers finds out which files refer to which lists.
func (j *judgement) findUsers() {
	j.users = map[string][]*state{}
	for _, f := range j.files {
		if f.good == nil {
			continue
		}
		for name := range f.good.Lists {
			j.users[name] = append(j.users[name], f)
		}
	}
}

// removalOfList returns what a new version of a list takes from services.
func (j *judgement) removalOfList(f *state) removal {
	r := removal{endpoints: map[source.Key][]endpointID{}}
	is := listedIn(j.due[f])
	j.eachUser(f, func(of *state, was *source.Service) {
		now := *was
		now.Endpoints = is
		if j.due[of] == nil {
			j.after[was.Key] = &now
		}
		if after := j.after[was.Key]; was.Disabled || after == nil || after.EndpointsFrom != was.EndpointsFrom {
			return // its own file says what becomes of it
		}
		if lost := lostEndpoints(was, &now); len(lost) > 0 {
			r.endpoints[was.Key] = lost
		}
	})
	return r
}
