package announcer

import (
	"net/netip"
	"slices"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/announce"
	"svcproxy.dev/svcproxy/source"
)

// A Route is a host route to this host.
type Route struct {
	Addr     netip.Addr
	Shutdown bool // routers are to prefer any other one
}

// ShutdownTime is how long routes have the mark of a graceful shutdown before they are withdrawn, where
// the kernel goes on serving: routers take less to find another way.
const ShutdownTime = 2 * time.Second

// routes are the addresses that are announced, and those that are about to go.
type routes struct {
	means map[netip.Addr]source.Means
	going map[netip.Addr]time.Time // routes by BGP, until then
}

func newRoutes() routes {
	return routes{means: make(map[netip.Addr]source.Means), going: make(map[netip.Addr]time.Time)}
}

// apply takes over changes as of now.
func (r *routes) apply(changes []announce.Change, now time.Time) {
	for _, ch := range changes {
		was := r.means[ch.Addr]
		if r.means[ch.Addr] = ch.Means; ch.Means == 0 {
			delete(r.means, ch.Addr)
		}
		switch {
		case ch.Means&source.BGP != 0:
			delete(r.going, ch.Addr)
		case was&source.BGP != 0 && ch.Wanted && ch.Serves:
			r.going[ch.Addr] = now.Add(ShutdownTime)
		case !ch.Serves:
			delete(r.going, ch.Addr)
		}
	}
}

// byBGP returns the routes as of now, and when they change by themselves; zero: they do not.
func (r *routes) byBGP(now time.Time) (list []Route, next time.Time) {
	for a, m := range r.means {
		if m&source.BGP != 0 {
			list = append(list, Route{Addr: a})
		}
	}
	for a, until := range r.going {
		if !now.Before(until) {
			delete(r.going, a)
			continue
		}
		list = append(list, Route{Addr: a, Shutdown: true})
		next = times.Due(next, until)
	}
	slices.SortFunc(list, func(a, b Route) int { return a.Addr.Compare(b.Addr) })
	return list, next
}

// byL2 returns the addresses that neighbours are told of.
func (r *routes) byL2() (list []netip.Addr) {
	for a, m := range r.means {
		if m&source.L2 != 0 {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}
