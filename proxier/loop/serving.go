package loop

import (
	"iter"
	"net/netip"

	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A Serving is what one family programs, at one time. What it refers to does not change.
type Serving struct {
	Family   policy.Family
	Services []*policy.Resolved // in no order
	Counter  proxier.Counter    // the backend, if it counts by itself; else nil

	host policy.Host
}

// Serving returns what each family programs now, or is about to. It may be called from
// any goroutine, also during a sync, and blocks one only while it copies references.
func (l *Loop) Serving() []Serving {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var list []Serving
	for _, f := range l.families {
		s := f.serving()
		s.Counter, _ = f.wanted.(proxier.Counter)
		list = append(list, s)
	}
	return list
}

func (f *family) serving() Serving {
	f.mu.RLock()
	defer f.mu.RUnlock()
	services := make([]*policy.Resolved, 0, len(f.state.Services))
	for _, r := range f.allResolved() {
		services = append(services, r)
	}
	return Serving{Family: f.fam, host: f.state.Host, Services: services}
}

// NewServing returns what a family with these services programs.
func NewServing(fam policy.Family, host policy.Host, services ...*policy.Resolved) Serving {
	return Serving{Family: fam, host: host, Services: services}
}

// FrontendAddrs yields where packets to a service are sent to, a node port at each address that
// serves it, with the service.
func (s *Serving) FrontendAddrs() iter.Seq2[proxier.FrontendAddr, *policy.Resolved] {
	return func(yield func(proxier.FrontendAddr, *policy.Resolved) bool) {
		for _, r := range s.Services {
			for _, f := range r.Frontends {
				for _, a := range s.host.Addrs(f) {
					if !yield(proxier.FrontendAddr{Protocol: f.Key.Protocol, AddrPort: netip.AddrPortFrom(a, f.Key.Port)}, r) {
						return
					}
				}
			}
		}
	}
}
