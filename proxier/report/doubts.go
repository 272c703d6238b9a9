package report

import (
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Doubt is something in a service that is valid by itself, but that cannot be meant
// in view of other services or processes of this host.
type Doubt struct {
	Key  source.Key
	Pos  source.Position
	Msg  string
	Hint string // may be empty
}

// Fault returns the doubt as a warning.
func (d Doubt) Fault() source.Fault {
	return source.Fault{Pos: d.Pos, Msg: fmt.Sprintf("service %q: %s", d.Key, d.Msg), Hint: d.Hint, Warning: true}
}

// String returns the doubt without the name of the service.
func (d Doubt) String() string { return source.Fault{Msg: d.Msg, Hint: d.Hint}.String() }

// Doubts returns those about the services in use that match accepts (nil: about all), in order of their names. It
// looks through all endpoints.
func Doubts(snap *Snapshot, match func(*source.Service) bool) (out []Doubt) {
	s := newSuspicion(snap)
	for _, svc := range snap.Services {
		if match != nil && !match(svc.Service) {
			continue
		}
		out = append(out, s.endpoints(svc.Service)...)
		out = append(out, s.listeners(svc.Service)...)
		out = append(out, s.answering(svc.Service)...)
	}
	slices.SortStableFunc(out, func(a, b Doubt) int { return a.Key.Compare(b.Key) })
	return out
}

// A suspicion indexes services and listeners.
type suspicion struct {
	*Snapshot
	having map[netip.Addr][]*source.Service // by address
	at     map[[2]uint16][]Listener         // by protocol and port
	asked  int                              // how many times Router was
}

func newSuspicion(snap *Snapshot) *suspicion {
	s := &suspicion{Snapshot: snap, having: make(map[netip.Addr][]*source.Service), at: make(map[[2]uint16][]Listener)}
	for _, svc := range snap.Services {
		for a := range svc.Addresses() {
			s.having[a] = append(s.having[a], svc.Service)
		}
	}
	if snap.Listening != nil {
		for _, l := range snap.Listening() {
			p := [2]uint16{uint16(l.Protocol), l.Port()}
			s.at[p] = append(s.at[p], l)
		}
	}
	return s
}

// owns reports whether an interface of this host is known to carry an address.
func (s *suspicion) owns(a netip.Addr) bool { return s.Node != nil && s.Node.Owns(a) }

// endpoints returns what there is to say of endpoints on addresses of other services: of
// the first of them, and how many there are. A connection is balanced once, so that
// one to such an endpoint gets no further, unless the address is on an interface too.
func (s *suspicion) endpoints(svc *source.Service) []Doubt {
	return firstDoubt(svc, func(e *source.Endpoint) Doubt {
		owners := s.having[e.Addr]
		if len(owners) == 0 || s.owns(e.Addr) {
			return Doubt{}
		}
		slices.SortFunc(owners, func(a, b *source.Service) int { return a.Compare(b.Key) }) // the same is named each time
		return Doubt{Key: svc.Key, Pos: svc.Pos, Msg: lost(svc, e, owners), Hint: "write the endpoints of that service, or other addresses"}
	})
}

// firstDoubt returns the first doubt that about has of an endpoint, which says how many more it has;
// one without Msg is none.
func firstDoubt(svc *source.Service, about func(*source.Endpoint) Doubt) []Doubt {
	var first Doubt
	more := 0
	for i := range svc.Endpoints {
		switch d := about(&svc.Endpoints[i]); {
		case d.Msg == "":
		case first.Msg == "":
			first = d
		default:
			more++
		}
	}
	if first.Msg == "" {
		return nil
	}
	if more > 0 {
		first.Msg += fmt.Sprintf("; so is it with %d more endpoints", more)
	}
	return []Doubt{first}
}

// lost says why a connection to an endpoint on an address of these services gets nowhere; empty: it may.
func lost(svc *source.Service, e *source.Endpoint, owners []*source.Service) string {
	for _, o := range owners {
		if o == svc {
			continue
		}
		isVIP := slices.Contains(o.VIPs, e.Addr)
		for _, p := range svc.Ports {
			n := e.Port(p)
			to := netip.AddrPortFrom(e.Addr, n)
			served := slices.ContainsFunc(o.Ports, func(q source.Port) bool { return q.Port == n && q.Protocol == p.Protocol })
			switch {
			case n == 0:
			case served && (isVIP || !o.InCluster): // hosts of a cluster have external addresses on their interfaces
				return fmt.Sprintf("endpoint %s/%s is service %q%s: no connection is balanced twice, so that none gets to the endpoints of that service", to, p.Protocol, o.Key, written(o.AddrPos(e.Addr)))
			case !served && isVIP:
				return fmt.Sprintf("endpoint %s/%s is on a vip of service %q%s, where that port is refused", to, p.Protocol, o.Key, written(o.AddrPos(e.Addr)))
			}
		}
	}
	return ""
}

// written returns " (file:line:col)", or nothing where that is not known.
func written(pos source.Position) string {
	if pos.File == "" {
		return ""
	}
	return " (" + pos.String() + ")"
}

// listeners returns what there is to say of processes that listen where a service
// takes the packets. Node ports on which this program itself listens are claims.
func (s *suspicion) listeners(svc *source.Service) []Doubt {
	if len(s.at) == 0 {
		return nil
	}
	var out []Doubt
	for c := range claims.Of(svc) {
		list := s.at[[2]uint16{uint16(c.Protocol), c.Port}]
		if len(list) == 0 || slices.Contains(svc.Without, c.PortAddr()) {
			continue
		}
		i := slices.IndexFunc(list, func(l Listener) bool { return s.hides(svc, c, l) })
		if i >= 0 {
			out = append(out, Doubt{Key: svc.Key, Pos: c.Pos(svc), Msg: hidden(c, list[i]), Hint: hiddenHint(c)})
		}
	}
	return out
}

// hides reports whether svc takes packets of l by what it claims.
func (s *suspicion) hides(svc *source.Service, c claims.Claim, l Listener) bool {
	switch {
	case c.Addr.IsValid():
		return slices.Contains(s.Families, policy.FamilyOf(c.Addr)) && l.takes(c.Addr) && (l.Addr() == c.Addr || s.owns(c.Addr))
	case l.Own, c.Port == svc.HealthCheckNodePort && c.Protocol == source.TCP, s.Node == nil:
		return false
	}
	own := s.Node.NodePortAddrsOf(svc.NodePortAddresses)
	if s.Node.LocalhostNodePorts {
		own = append(slices.Clone(own), netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return slices.ContainsFunc(own, func(a netip.Addr) bool {
		return slices.Contains(s.Families, policy.FamilyOf(a)) && policy.Serves(svc, policy.FamilyOf(a)) && l.takes(a)
	})
}

// hidden says that packets to c do not reach a listener any more.
func hidden(c claims.Claim, l Listener) string {
	who := "a process of this host"
	if l.Own {
		who = "svcproxy itself"
	}
	where := c.String()
	if !c.Addr.IsValid() {
		where = "the node port addresses"
	}
	return fmt.Sprintf("%s listens on %s, and becomes unreachable at %s", who, l, where)
}

// ssh is the port of the listener that a remote admin depends on.
const ssh = 22

func hiddenHint(c claims.Claim) string {
	if c.Port == ssh && c.Protocol == source.TCP {
		return "your sshd becomes unreachable here"
	}
	return ""
}

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

// doubtsOf returns the texts of Doubts, by service.
func doubtsOf(s *Snapshot, match func(*source.Service) bool) map[source.Key][]string {
	by := make(map[source.Key][]string)
	for _, d := range Doubts(s, match) {
		by[d.Key] = append(by[d.Key], d.String())
	}
	return by
}
