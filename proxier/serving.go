package proxier

import (
	"iter"
	"net/netip"
)

// A Serving is what one family programs, at one time. What it refers to does not change.
type Serving struct {
	Family   Family
	Services []*Resolved // in no order
	Counter  Counter     // the backend, if it counts by itself; else nil

	host Host
}

// Serving returns what each family programs now, or is about to. It may be called from
// any goroutine, also during a sync, and blocks one only while it copies references.
func (l *Loop) Serving() []Serving {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var list []Serving
	for _, f := range l.families {
		s := f.serving()
		s.Counter, _ = f.wanted.(Counter)
		list = append(list, s)
	}
	return list
}

func (f *family) serving() Serving {
	f.mu.RLock()
	defer f.mu.RUnlock()
	services := make([]*Resolved, 0, len(f.state.Services))
	for _, r := range f.allResolved() {
		services = append(services, r)
	}
	return Serving{Family: f.fam, host: f.state.Host, Services: services}
}

// NewServing returns what a family with these services programs.
func NewServing(fam Family, host Host, services ...*Resolved) Serving {
	return Serving{Family: fam, host: host, Services: services}
}

// FrontendAddrs yields where packets to a service are sent to, a node port at each address that
// serves it, with the service.
func (s *Serving) FrontendAddrs() iter.Seq2[FrontendAddr, *Resolved] {
	return func(yield func(FrontendAddr, *Resolved) bool) {
		for _, r := range s.Services {
			for _, f := range r.Frontends {
				for _, a := range s.host.Addrs(f) {
					if !yield(FrontendAddr{f.Key.Protocol, netip.AddrPortFrom(a, f.Key.Port)}, r) {
						return
					}
				}
			}
		}
	}
}

// Endpoints yields where the endpoints of a service are, some of them several times.
func (r *Resolved) Endpoints() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, p := range r.Pools {
			for _, t := range p.Targets {
				if !yield(t.AddrPort) {
					return
				}
			}
			for _, list := range [][]netip.AddrPort{p.Kept, p.Closed} {
				for _, a := range list {
					if !yield(a) {
						return
					}
				}
			}
		}
	}
}

// Has reports whether an endpoint of the service is there.
func (r *Resolved) Has(at netip.AddrPort) bool {
	for a := range r.Endpoints() {
		if a == at {
			return true
		}
	}
	return false
}
