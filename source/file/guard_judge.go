package file

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// judge finds out which files of a plan are held, and why: of these or, nil, of all.
func (s *guarding) judge(p *plan, only map[*state]bool, guard Guard, now time.Time) *judgement {
	j := &judgement{
		plan: p, guard: guard, removed: &s.removed, now: now,
		after: map[source.Key]*source.Service{}, takes: map[*state]*removal{}, verdict: map[*state]string{},
	}
	s.removed.prune(now)
	if guard.Removals == 0 || !j.collect(only) {
		return j
	}
	for _, f := range s.files {
		j.total += f.enabled()
	}
	j.services()
	for f := range j.takes {
		j.endpoints(f)
	}
	return j
}

// collect finds out what the plan would remove, and reports whether that is anything. What
// is in another file by now was moved.
func (j *judgement) collect(only map[*state]bool) bool {
	for _, f := range j.files {
		if v := j.next[f]; v != nil {
			j.add(f, v)
		} else if f.used != f.good { // it waits for what others have
			j.add(f, f.used)
		}
	}
	for _, f := range j.changing() {
		if j.next[f] == nil {
			j.add(f, f.good)
		}
	}
	j.removals()
	maps.DeleteFunc(j.takes, func(f *state, _ *removal) bool { return only != nil && !only[f] })
	for k := range j.after {
		delete(j.removed.services.gone, k)
	}
	for k, r := range j.removed.endpoints {
		if s := j.after[k]; s != nil {
			comeBack(r.gone, s)
		}
	}
	return len(j.takes) > 0
}

// add notes the services that a version of a file would have.
func (j *judgement) add(f *state, v *read.Version) {
	if v == nil {
		return
	}
	for _, s := range j.of(f, v).Services {
		if !s.Disabled {
			j.after[s.Key] = s
		}
	}
}

// services holds the files that services go from, if these are too many.
func (j *judgement) services() {
	_, of := j.removed.services.before(j.now, j.total)
	n := len(j.goneServices())
	if !j.guard.exceeds(n, of) {
		return
	}
	for f, r := range j.takes {
		if len(r.services) > 0 {
			j.verdict[f] = fmt.Sprintf("it would remove %s; with all others %d of %d services, and %d %% may go",
				nameServices(r.services), n, of, j.guard.Removals)
		}
	}
}

// goneServices returns all that were removed lately, or would be now: one that is on its way,
// or refused, is in use still and goes again, and counts once.
func (j *judgement) goneServices() map[source.Key]bool {
	keys := map[source.Key]bool{}
	for k := range j.removed.services.gone {
		keys[k] = true
	}
	add := func(list []source.Key) {
		for _, k := range list {
			keys[k] = true
		}
	}
	for _, r := range j.takes {
		add(r.services)
	}
	for _, f := range j.held {
		if _, again := j.takes[f]; !again && f.hold != nil {
			add(f.hold.services)
		}
	}
	return keys
}

// endpoints holds a file of which a service would lose too many.
func (j *judgement) endpoints(f *state) {
	var bad []source.Key
	var worst string
	for _, l := range j.takes[f].endpoints {
		gone, of := 0, l.of
		if r := j.removed.endpoints[l.key]; r != nil {
			gone, of = r.before(j.now, of)
			gone -= r.have(l.lost) // of one that is on its way
		}
		if j.guard.exceeds(gone+len(l.lost), of) {
			if bad = append(bad, l.key); worst == "" {
				worst = fmt.Sprintf("it would remove %d of %d endpoints of %s, and %d %% may go", gone+len(l.lost), of, l.key, j.guard.Removals)
			}
		}
	}
	if len(bad) > 1 {
		worst += fmt.Sprintf("; so of %d services", len(bad))
	}
	if worst != "" && j.verdict[f] == "" {
		j.verdict[f] = worst
	}
}

// comeBack forgets the removal of endpoints that a service has again.
func comeBack(gone map[endpointID]time.Time, is *source.Service) {
	have := map[netip.Addr]int{}
	for _, e := range is.Endpoints {
		if e.Disabled {
			continue
		}
		have[e.Addr]++
		delete(gone, endpointID{e.Addr, have[e.Addr]})
	}
}

// note remembers what is taken away, where nothing is held.
func (j *judgement) note() {
	for _, r := range j.takes {
		if len(r.services) > 0 {
			j.removed.services.remove(j.now, j.total, r.services)
		}
		for _, l := range r.endpoints {
			if l.of < guardLeast && j.removed.endpoints[l.key] == nil {
				continue
			}
			if j.removed.endpoints == nil {
				j.removed.endpoints = map[source.Key]*removals[endpointID]{}
			}
			if j.removed.endpoints[l.key] == nil {
				j.removed.endpoints[l.key] = &removals[endpointID]{}
			}
			j.removed.endpoints[l.key].remove(j.now, l.of, l.lost)
		}
	}
}

// guardNames is how many names a message has.
const guardNames = 5

// nameServices says how many services these are, and the names of the first.
func nameServices(keys []source.Key) string {
	var names []string
	for _, k := range keys[:min(len(keys), guardNames)] {
		names = append(names, k.String())
	}
	what, more := "services", ""
	if len(keys) == 1 {
		what = "service"
	}
	if len(keys) > guardNames {
		more = ", ..."
	}
	return fmt.Sprintf("%d %s (%s%s)", len(keys), what, strings.Join(names, ", "), more)
}

// To the guard what is disabled is as if it were not there: it leaves the kernel as what is
// deleted does.

// enabled returns how many services of the file are in use.
func (f *state) enabled() (n int) {
	if f.good == nil {
		return 0
	}
	for _, s := range f.good.Services {
		if !s.Disabled {
			n++
		}
	}
	return n
}

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
