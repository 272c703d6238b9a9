package file

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// judge returns which of these files, whose versions count by now, are held, and why.
func (s *Source) judge(due []*probe, guard Guard, now time.Time) map[*state]string {
	j := judgement{
		Source: s, guard: guard, now: now,
		after: map[source.Key]*source.Service{}, due: map[*state]*read.Version{},
		takes: map[*state]removal{}, verdict: map[*state]string{},
	}
	s.removed.prune(now)
	if guard.Removals == 0 || !j.collect(due) {
		return j.verdict
	}
	for _, f := range s.files {
		j.total += f.enabled()
	}
	j.services()
	for f := range j.takes {
		j.endpoints(f)
	}
	for f, r := range j.takes {
		if j.verdict[f] == "" {
			j.note(f, r)
		}
	}
	return j.verdict
}

// collect finds out what the step would remove, and reports whether that is anything. What
// is in another file by now was moved.
func (j *judgement) collect(due []*probe) bool {
	for _, p := range due {
		j.due[p.f] = p.f.next // p.v is nil of one that was looked at again as it was
	}
	for _, p := range due {
		j.add(p.f.next)
	}
	for _, f := range j.files {
		if j.due[f] == nil && f.used != nil && f.used != f.good { // it waits for what others have
			j.add(f.used)
		}
	}
	for _, p := range due { // lists first: they say what becomes of services of files that are not due
		if p.f.good != nil && p.f.good.List != nil {
			if r := j.removalOfList(p.f); len(r.endpoints) > 0 {
				j.takes[p.f] = r
			}
		}
	}
	for _, p := range due {
		if p.f.isList() {
			continue
		}
		if r := j.removal(p.f); len(r.services)+len(r.endpoints) > 0 {
			j.takes[p.f] = r
		}
	}
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

func (j *judgement) add(v *read.Version) {
	for _, s := range v.Services {
		if !s.Disabled {
			j.after[s.Key] = j.withList(s, j.afterwards)
		}
	}
}

func (j *judgement) removal(f *state) removal {
	r := removal{endpoints: map[source.Key][]endpointID{}}
	for _, s := range j.goodServices(f) {
		if s.Disabled {
			continue
		}
		is := j.after[s.Key]
		if is == nil {
			r.services = append(r.services, s.Key)
		} else if s.EndpointsFrom != "" && s.EndpointsFrom == is.EndpointsFrom {
			continue // see removalOfList
		} else if lost := lostEndpoints(s, is); len(lost) > 0 {
			r.endpoints[s.Key] = lost
		}
	}
	return r
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
				plural(len(r.services), "service", keyNames(r.services)), n, of, j.guard.Removals)
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
	for _, s := range j.goodServices(f) {
		lost := j.takes[f].endpoints[s.Key]
		if lost == nil {
			continue
		}
		gone, of := 0, enabledEndpoints(s)
		if r := j.removed.endpoints[s.Key]; r != nil {
			gone, of = r.before(j.now, of)
			gone -= r.have(lost) // of one that is on its way
		}
		if j.guard.exceeds(gone+len(lost), of) {
			if bad = append(bad, s.Key); worst == "" {
				worst = fmt.Sprintf("it would remove %d of %d endpoints of %s, and %d %% may go", gone+len(lost), of, s.Key, j.guard.Removals)
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

// note remembers what a file that is not held takes away.
func (j *judgement) note(f *state, r removal) {
	if len(r.services) > 0 {
		j.removed.services.remove(j.now, j.total, r.services)
	}
	for _, s := range j.goodServices(f) {
		lost := r.endpoints[s.Key]
		n := enabledEndpoints(s)
		if len(lost) == 0 || n < guardLeast && j.removed.endpoints[s.Key] == nil {
			continue
		}
		if j.removed.endpoints == nil {
			j.removed.endpoints = map[source.Key]*removals[endpointID]{}
		}
		if j.removed.endpoints[s.Key] == nil {
			j.removed.endpoints[s.Key] = &removals[endpointID]{}
		}
		j.removed.endpoints[s.Key].remove(j.now, n, lost)
	}
}

// guardNames is how many names a message has.
const guardNames = 5

func keyNames(keys []source.Key) (names []string) {
	for _, k := range keys[:min(len(keys), guardNames)] {
		names = append(names, k.String())
	}
	return names
}

// plural says how many there are of something, and the names of the first.
func plural(n int, what string, names []string) string {
	if n != 1 {
		what += "s"
	}
	text := fmt.Sprintf("%d %s (%s", n, what, strings.Join(names, ", "))
	if n > len(names) {
		text += ", ..."
	}
	return text + ")"
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

// enabledEndpoints returns how many endpoints of a service are not disabled.
func enabledEndpoints(s *source.Service) (n int) {
	for i := range s.Endpoints {
		if !s.Endpoints[i].Disabled {
			n++
		}
	}
	return n
}
