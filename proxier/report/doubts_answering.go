package report

import (
	"fmt"
	"net/netip"

	"svcproxy.dev/svcproxy/source"
)

// maxAsked is of how many endpoints one look through all services asks for the way, at some 20 us each.
const maxAsked = 1000

// answering returns what there is to say of endpoints that are to answer clients themselves: of the
// first that packets do not get to, and how many there are.
func (s *suspicion) answering(svc *source.Service) []Doubt {
	if !svc.Forward.Answers() || svc.Disabled {
		return nil
	}
	return firstDoubt(svc, func(e *source.Endpoint) Doubt { return s.unreachable(svc, e.Addr) })
}

// unreachable says why packets do not get to an endpoint that answers clients itself; empty: they may.
func (s *suspicion) unreachable(svc *source.Service, a netip.Addr) (d Doubt) {
	d = Doubt{Key: svc.Key, Pos: svc.Pos}
	switch {
	case s.owns(a):
		d.Msg = fmt.Sprintf("endpoint %s is an address of this host, and forward is %q: only a program here that listens on the addresses of the service answers", a, svc.Forward.Method)
	case svc.Forward.Method == source.ForwardDirect:
		if via := s.router(a); via.IsValid() {
			d.Msg = fmt.Sprintf("endpoint %s is behind the router %s, and forward is \"direct\": the router sends its packets back", a, via)
			d.Hint = "forward = \"tunnel\" gets through routers"
		}
	}
	return d
}

// router returns by way of which router this host reaches an address, if it is known to be one.
func (s *suspicion) router(a netip.Addr) netip.Addr {
	if s.Router == nil || s.asked == maxAsked {
		return netip.Addr{}
	}
	s.asked++
	via, err := s.Router(a)
	if err != nil { // no route, say: explain tells of that
		return netip.Addr{}
	}
	return via
}
