package traffic

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A book has the accounts of all services since counting began. It knows no kernel.
type book struct {
	services map[source.Key]*account
	addrs    map[proxier.FrontendAddr]*account
	at       time.Time     // of the last reading; zero: none yet
	over     time.Duration // between the last two
}

// An account is that of one service.
type account struct {
	resolved  []*policy.Resolved // in each family; none: the service is gone
	endpoints map[netip.AddrPort]*line
	figures   Figures
}

// A line is that of one endpoint of a service.
type line struct {
	there proxier.Count // what there is, as the reading under way found it
	was   proxier.Count // the same, of the reading before
	ended proxier.Count // what has been counted since of what is not there any more
	Figures
}

// begin begins a reading of these services.
func (b *book) begin(serving []report.Family) {
	if b.services == nil {
		b.services = make(map[source.Key]*account)
	}
	for _, a := range b.services {
		a.resolved = a.resolved[:0]
	}
	b.addrs = make(map[proxier.FrontendAddr]*account)
	for i := range serving {
		for _, r := range serving[i].Resolved {
			a := b.account(r.Key)
			a.resolved = append(a.resolved, r)
		}
		for at, r := range serving[i].FrontendAddrs() {
			b.addrs[at] = b.services[r.Key]
		}
	}
}

// account returns the account of a service, a new one where there is none.
func (b *book) account(k source.Key) *account {
	a := b.services[k]
	if a == nil {
		a = &account{}
		b.services[k] = a
	}
	return a
}

// has reports whether an endpoint is one of the service.
func (a *account) has(at netip.AddrPort) bool {
	return slices.ContainsFunc(a.resolved, func(r *policy.Resolved) bool { return r.Has(at) })
}

// line returns the line that a pair is counted in; nil: it is not ours.
func (b *book) line(p proxier.Pair) *line {
	a := b.addrs[p.FrontendAddr]
	if a == nil {
		return nil
	}
	l := a.endpoints[p.Target]
	if l == nil {
		if a.endpoints == nil {
			a.endpoints = make(map[netip.AddrPort]*line)
		}
		l = &line{}
		a.endpoints[p.Target] = l
	}
	return l
}

// there notes something that the kernel counts now.
func (b *book) there(p proxier.Pair, c proxier.Count) {
	if l := b.line(p); l != nil {
		l.there = sum(l.there, c)
	}
}

// ended notes something that the kernel has counted since the last reading, and
// forgotten.
func (b *book) ended(p proxier.Pair, c proxier.Count) {
	if l := b.line(p); l != nil {
		l.ended = sum(l.ended, c)
	}
}

// end ends a reading. read: of which endpoints all was read, so that what was not
// noted is not there.
func (b *book) end(now time.Time, read func(netip.AddrPort) bool) {
	if b.over = 0; !b.at.IsZero() {
		b.over = now.Sub(b.at)
	}
	b.at = now
	for key, a := range b.services {
		if len(a.resolved) == 0 {
			delete(b.services, key)
			continue
		}
		a.end(b.over, read)
	}
}

// end books what a reading found.
func (a *account) end(over time.Duration, read func(netip.AddrPort) bool) {
	var grown, active proxier.Count
	for at, l := range a.endpoints {
		if !read(at) {
			l.there = l.was // it goes on where it was
		}
		delta := l.grown()
		l.was, l.there, l.ended = l.there, proxier.Count{}, proxier.Count{}
		l.add(l.was.Active, delta, over)
		grown, active.Active = sum(grown, delta), active.Active+l.was.Active
		if l.was == (proxier.Count{}) && delta == l.was && !a.has(at) {
			delete(a.endpoints, at)
		}
	}
	a.figures.add(active.Active, grown, over)
}

// grown returns what has been added since the reading before. What the kernel
// forgets without a word, as when a virtual server is removed, is no growth.
func (l *line) grown() proxier.Count {
	growth := func(there, ended, was uint64) uint64 { return there + ended - min(was, there+ended) }
	return proxier.Count{
		Connections: growth(l.there.Connections, l.ended.Connections, l.was.Connections),
		Packets:     growth(l.there.Packets, l.ended.Packets, l.was.Packets),
		Bytes:       growth(l.there.Bytes, l.ended.Bytes, l.was.Bytes),
	}
}

// add adds what has grown over a time; 0: over a time before the first reading.
func (f *Figures) add(active uint64, grown proxier.Count, over time.Duration) {
	f.Active = active
	f.Connections += grown.Connections
	f.Packets += grown.Packets
	f.Bytes += grown.Bytes
	rate := func(n uint64) float64 {
		if over <= 0 {
			return 0
		}
		return float64(n) / over.Seconds()
	}
	f.ConnectionRate, f.PacketRate, f.ByteRate = rate(grown.Connections), rate(grown.Packets), rate(grown.Bytes)
}

func sum(a, b proxier.Count) proxier.Count {
	return proxier.Count{
		Active: a.Active + b.Active, Connections: a.Connections + b.Connections,
		Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes,
	}
}

// idle reports whether nothing has ever been counted.
func (f *Figures) idle() bool { return *f == Figures{} }

// report fills in the services that q asks for.
func (b *book) report(q *Query, r *Report) {
	r.Time, r.Over = b.at, b.over.Seconds()
	list := make([]Service, 0, min(len(b.services), DefaultLimit))
	for key, a := range b.services {
		named := q.wants(key)
		if named || len(q.Names) == 0 && !a.figures.idle() {
			list = append(list, Service{Namespace: key.Namespace, Name: key.Name, Figures: a.figures})
		}
	}
	slices.SortFunc(list, func(a, b Service) int { return q.compare(&a, &b) })
	limit := cmp.Or(q.Limit, DefaultLimit)
	r.Services, r.More = list[:min(limit, len(list))], max(0, len(list)-limit)
	if q.Endpoints {
		b.addEndpoints(r.Services, maxEndpoints)
	}
}

// addEndpoints gives services their endpoints, up to so many of all of them.
func (b *book) addEndpoints(services []Service, most int) {
	for i := range services {
		s := &services[i]
		s.Endpoints = b.services[s.Key()].list()
		s.More = max(0, len(s.Endpoints)-most)
		s.Endpoints = s.Endpoints[:len(s.Endpoints)-s.More]
		most -= len(s.Endpoints)
	}
}

// list returns the endpoints of a service by address: those that there are, and former
// ones that have connections.
func (a *account) list() []Endpoint {
	all := make(map[netip.AddrPort]Endpoint)
	for at, l := range a.endpoints {
		all[at] = Endpoint{Address: at, Gone: true, Figures: l.Figures}
	}
	for _, r := range a.resolved {
		for at := range r.Endpoints() {
			e := all[at]
			e.Address, e.Gone = at, false
			all[at] = e
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Endpoint) int { return a.Address.Compare(b.Address) })
}
