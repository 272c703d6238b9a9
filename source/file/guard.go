package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/source"
)

// A Guard says which changes of files wait for a word of the admin.
type Guard struct {
	// Removals is the share of all services of files, and of the endpoints of each
	// service, that changes may remove within a minute, in per cent; 0: any. It
	// counts where there are ten or more.
	Removals int

	// Manual has every change wait for Apply or Confirm.
	Manual bool
}

const (
	// guardLeast is from how many services, or endpoints, on a share of them counts.
	guardLeast = 10

	// guardWindow is for how long what was removed counts with what is removed next:
	// files that vanish one by one are one removal.
	guardWindow = time.Minute

	// guardNames is how many names a message has.
	guardNames = 5
)

// A guard knows what was removed lately. It belongs to the goroutine of Run.
type guard struct {
	services  removals[source.Key]
	endpoints map[source.Key]*removals[endpointID]
	pruned    time.Time
}

// An endpointID tells the endpoints of a service apart: the n-th with this address.
type endpointID struct {
	addr netip.Addr
	n    int
}

// removals are what was removed of one whole within guardWindow, and how large that was.
type removals[K comparable] struct {
	gone  map[K]time.Time
	sizes []sizeAt // the largest of each second
}

type sizeAt struct {
	at   time.Time
	size int
}

// before returns how many were removed lately, and how many there were at most, with size now.
func (r *removals[K]) before(now time.Time, size int) (gone, most int) {
	for k, at := range r.gone {
		if now.Sub(at) >= guardWindow {
			delete(r.gone, k)
		}
	}
	r.sizes = slices.DeleteFunc(r.sizes, func(s sizeAt) bool { return now.Sub(s.at) >= guardWindow })
	for _, s := range r.sizes {
		size = max(size, s.size)
	}
	return len(r.gone), size
}

// remove notes what was removed of this many.
func (r *removals[K]) remove(now time.Time, size int, list []K) {
	if r.gone == nil {
		r.gone = map[K]time.Time{}
	}
	for _, k := range list {
		r.gone[k] = now
	}
	if n := len(r.sizes); n > 0 && now.Sub(r.sizes[n-1].at) < time.Second {
		r.sizes[n-1].size = max(r.sizes[n-1].size, size)
	} else {
		r.sizes = append(r.sizes, sizeAt{now, size})
	}
}

// exceeds reports whether n of so many are more than the setting lets go.
func (g Guard) exceeds(n, of int) bool {
	return g.Removals > 0 && n > 0 && of >= guardLeast && n*100 > g.Removals*of
}

// prune forgets what is too long ago to count.
func (g *guard) prune(now time.Time) {
	if now.Sub(g.pruned) < guardWindow/4 {
		return
	}
	g.pruned = now
	for k, r := range g.endpoints {
		if gone, _ := r.before(now, 0); gone == 0 {
			delete(g.endpoints, k)
		}
	}
}

// forget has nothing count any more that was removed so far.
func (g *guard) forget() { *g = guard{} }

// lostEndpoints returns what is of is not in now.
func lostEndpoints(was, is *source.Service) (lost []endpointID) {
	if slices.EqualFunc(was.Endpoints, is.Endpoints, func(a, b source.Endpoint) bool { return a.Addr == b.Addr }) {
		return nil
	}
	left, seen := map[netip.Addr]int{}, map[netip.Addr]int{}
	for _, e := range is.Endpoints {
		left[e.Addr]++
	}
	for _, e := range was.Endpoints {
		if seen[e.Addr]++; seen[e.Addr] > left[e.Addr] {
			lost = append(lost, endpointID{e.Addr, seen[e.Addr]})
		}
	}
	return lost
}

// A removal is what a version takes away of what its file has in use.
type removal struct {
	services  []source.Key
	endpoints map[source.Key][]endpointID
}

// A judgement of a step finds out which of its files the guard holds.
type judgement struct {
	*Source
	set     Guard
	now     time.Time
	total   int // services in use
	after   map[source.Key]*source.Service
	takes   map[*state]removal
	verdict map[*state]string // why a file is held
}

// judge returns which of these files, whose versions count by now, are held, and why.
func (s *Source) judge(due []*probe, set Guard, now time.Time) map[*state]string {
	j := judgement{s, set, now, 0, map[source.Key]*source.Service{}, map[*state]removal{}, map[*state]string{}}
	s.guard.prune(now)
	if set.Removals == 0 || !j.collect(due) {
		return j.verdict
	}
	for _, f := range s.files {
		j.total += f.services()
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
	isDue := map[*state]bool{}
	for _, p := range due {
		isDue[p.f] = true
		j.add(p.v)
	}
	for _, f := range j.files {
		if !isDue[f] && f.used != nil && f.used != f.good { // it waits for what others have
			j.add(f.used)
		}
	}
	for _, p := range due {
		if r := j.removal(p.f); len(r.services)+len(r.endpoints) > 0 {
			j.takes[p.f] = r
		}
	}
	for k := range j.after {
		delete(j.guard.services.gone, k)
	}
	for k, r := range j.guard.endpoints {
		if s := j.after[k]; s != nil {
			comeBack(r.gone, s)
		}
	}
	return len(j.takes) > 0
}

func (j *judgement) add(v *version) {
	for _, s := range v.services {
		j.after[s.Key] = s
	}
}

func (j *judgement) removal(f *state) removal {
	r := removal{endpoints: map[source.Key][]endpointID{}}
	if f.good == nil {
		return r
	}
	for _, s := range f.good.services {
		is := j.after[s.Key]
		if is == nil {
			r.services = append(r.services, s.Key)
		} else if lost := lostEndpoints(s, is); len(lost) > 0 {
			r.endpoints[s.Key] = lost
		}
	}
	return r
}

// services holds the files that services go from, if these are too many.
func (j *judgement) services() {
	n, of := j.guard.services.before(j.now, j.total)
	for _, r := range j.takes {
		n += len(r.services)
	}
	for _, f := range j.held {
		if _, again := j.takes[f]; !again && f.hold != nil {
			n += len(f.hold.services)
		}
	}
	if !j.set.exceeds(n, of) {
		return
	}
	for f, r := range j.takes {
		if len(r.services) > 0 {
			j.verdict[f] = fmt.Sprintf("it would remove %s; with all others %d of %d services, and %d %% may go",
				plural(len(r.services), "service", keyNames(r.services)), n, of, j.set.Removals)
		}
	}
}

// endpoints holds a file of which a service would lose too many.
func (j *judgement) endpoints(f *state) {
	var bad []source.Key
	var worst string
	for _, s := range f.good.services {
		lost := j.takes[f].endpoints[s.Key]
		if lost == nil {
			continue
		}
		gone, of := 0, len(s.Endpoints)
		if r := j.guard.endpoints[s.Key]; r != nil {
			gone, of = r.before(j.now, of)
		}
		if j.set.exceeds(gone+len(lost), of) {
			if bad = append(bad, s.Key); worst == "" {
				worst = fmt.Sprintf("it would remove %d of %d endpoints of %s, and %d %% may go", gone+len(lost), of, s.Key, j.set.Removals)
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
		have[e.Addr]++
		delete(gone, endpointID{e.Addr, have[e.Addr]})
	}
}

// note remembers what a file that is not held takes away.
func (j *judgement) note(f *state, r removal) {
	if len(r.services) > 0 {
		j.guard.services.remove(j.now, j.total, r.services)
	}
	for _, s := range f.good.services {
		lost := r.endpoints[s.Key]
		if len(lost) == 0 || len(s.Endpoints) < guardLeast && j.guard.endpoints[s.Key] == nil {
			continue
		}
		if j.guard.endpoints == nil {
			j.guard.endpoints = map[source.Key]*removals[endpointID]{}
		}
		if j.guard.endpoints[s.Key] == nil {
			j.guard.endpoints[s.Key] = &removals[endpointID]{}
		}
		j.guard.endpoints[s.Key].remove(j.now, len(s.Endpoints), lost)
	}
}

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
