package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A decision is what svcproxy does with a packet.
type decision struct {
	address
	sender policy.Sender

	use      *use // whose frontend the packet is addressed to; nil: none
	frontend *policy.Frontend
	route    policy.Route
	outcome  Outcome
	why      string // in words, unless it is balanced
	hint     string

	details map[netip.AddrPort]policy.Detail // of the endpoints of use
}

// decide returns what svcproxy does with a packet that comes in by an interface; empty
// where this host sends it.
func decide(w *World, q Question, in string) *decision {
	fam := policy.FamilyOf(q.Dest)
	d := &decision{address: address{question: q, world: w, family: fam, host: w.Node.Host(fam)}}
	d.sender = policy.Sender{Addr: q.Source, Host: isHost(w.Node, q.Source), Interface: in}
	if d.sender.Host {
		d.sender.Interface = ""
	}
	d.findUses()
	switch {
	case !slices.Contains(w.Families, fam):
		d.outcome, d.why = Untouched, fmt.Sprintf("%s is not programmed", fam)
		d.hint = "see families in svcproxy.toml, and svcproxy status"
	case q.Port == 0:
		d.list()
	default:
		d.find()
	}
	return d
}

// list lists what the address serves.
func (d *decision) list() {
	d.outcome = Listed
	if !slices.ContainsFunc(d.uses, func(u use) bool { return len(u.frontends) > 0 }) {
		d.notServed()
	}
}

// notServed says what becomes of a packet to no frontend.
func (d *decision) notServed() {
	a := d.question.Dest
	d.outcome, d.why = Untouched, "no service has "+d.question.String()
	switch owner := d.refusing(); {
	case owner != "":
		d.outcome, d.why = Refused, owner
	case d.inServiceCIDR(a):
		d.outcome, d.why = Refused, fmt.Sprintf("%s is in service_cidrs and no service has it", a)
	case d.world.BindsAddresses && d.bound(a):
		d.outcome, d.why = Refused, fmt.Sprintf("%s is bound to this host and serves no %s", a, d.portText())
	case len(d.uses) > 0:
		d.why = fmt.Sprintf("%s has no port %s", d.uses[0].Key, d.portText())
		if !isHost(d.world.Node, a) {
			d.why += ", and the packet may return to the router that sent it"
		}
	}
	d.hint = d.nearest()
}

// find finds the frontend of the packet. One with the address itself comes before a node port.
func (d *decision) find() {
	for _, nodePort := range []bool{false, true} {
		for i := range d.uses {
			for _, f := range d.uses[i].frontends {
				if f.Key.Port == d.question.Port && f.Key.Protocol == d.question.Protocol && (f.Key.Kind == policy.NodePort) == nodePort {
					d.decideFor(&d.uses[i], f)
					return
				}
			}
		}
	}
	d.notServed()
}

func (d *decision) decideFor(u *use, f *policy.Frontend) {
	d.use, d.frontend = u, f
	d.route = f.RouteOf(d.sender, &d.host)
	switch {
	case !f.Admits(d.question.Source):
		d.outcome, d.why = Dropped, fmt.Sprintf("%s is not in %s", d.question.Source, policy.KeptOutBy(u.Service, d.world.Node, f, d.question.Source))
	case d.route.Action == policy.Balance:
		d.outcome = Balanced
	case d.route.Action == policy.Drop:
		d.outcome, d.why, d.hint = Dropped, d.whyNone(), d.firstUnused()
	default:
		d.outcome, d.why, d.hint = Refused, d.whyNone(), d.firstUnused()
	}
}

// whyNone says why the route does not balance, in the words of svcproxy status.
func (d *decision) whyNone() string {
	return policy.Why(d.use.Subject, d.world.Node, d.frontend, d.route).String()
}

// An endpoint is one of a service, and whether it is used.
type endpoint struct {
	*source.Endpoint
	index int // in the service
	port  uint16
	state policy.EndpointState
}

// endpoints are those of the packet's service.
func (d *decision) endpoints() []endpoint {
	p, found := d.port()
	if !found {
		return nil
	}
	var list []endpoint
	for i, s := range policy.States(d.use.Subject, d.world.Node, d.family, p, d.route.Pool.Scope) {
		e := &d.use.Endpoints[i]
		list = append(list, endpoint{e, i, e.Port(p), s})
	}
	return list
}

// port returns the service's port that the packet is for.
func (d *decision) port() (source.Port, bool) {
	i := slices.IndexFunc(d.use.Ports, func(p source.Port) bool {
		return p.Name == d.frontend.ServicePort.Port && p.Protocol == d.frontend.Key.Protocol
	})
	if i < 0 {
		return source.Port{}, false
	}
	return d.use.Ports[i], true
}

// masquerade reports whether the packet gets an address of this host as its source on its
// way to a target, and why or why not.
func (d *decision) masquerade(target netip.Addr) (bool, string) {
	switch m := d.route.Masquerade; {
	case d.answers():
		return false, "forward is " + d.route.Pool.Forward.String() + ", and endpoints answer the client themselves"
	case target == d.question.Source && d.sourceIsEndpoint(target):
		return true, "it reaches itself"
	case m.Covers(d.sender, &d.host):
		return true, d.whyMasquerade(m)
	case m == policy.NonLocal:
		return false, "it is a local source"
	case d.frontend.Key.Kind == policy.VIP, d.use.ExternalTrafficPolicy == source.Cluster:
		return false, "masquerade is never"
	}
	return false, "external_traffic_policy is local"
}

// sourceIsEndpoint: hairpins are found by the address of a target and its own.
func (d *decision) sourceIsEndpoint(target netip.Addr) bool {
	return slices.ContainsFunc(d.route.Pool.Targets, func(t policy.Target) bool { return t.Addr() == target })
}

func (d *decision) whyMasquerade(m policy.Masquerade) string {
	vip := d.frontend.Key.Kind == policy.VIP
	switch {
	case m == policy.HostProcesses, d.sender.Host && !vip:
		return "a process of this host asks"
	case m == policy.NonLocal:
		return "it is not a local source"
	case !vip:
		return "external traffic is, unless its policy is local"
	case d.world.Node.MasqueradeOf(d.use.Service) == source.MasqueradeAll:
		return "masquerade is all"
	}
	return "no local_cidrs or local_interfaces are set, so no source is local"
}

// answers reports whether endpoints answer the client of the packet themselves.
func (d *decision) answers() bool {
	return d.outcome == Balanced && d.balancedOutside() && d.route.Pool.Forward.Answers()
}

// balancedOutside reports whether no rule balances: rules do for packets of local sources that are treated
// differently, in all modes.
func (d *decision) balancedOutside() bool {
	return d.world.Balancer != "" && !(d.frontend != nil && d.frontend.Split() && d.route == d.frontend.FromLocal)
}

// expected are the endpoints that may answer, with their shares.
func (d *decision) expected() (list []Expected) {
	if d.outcome != Balanced {
		return nil
	}
	total := uint64(0)
	for _, t := range d.route.Pool.Targets {
		total += uint64(t.Weight)
	}
	for _, t := range d.route.Pool.Targets {
		masq, _ := d.masquerade(t.Addr())
		list = append(list, Expected{Address: t.AddrPort, Share: float64(t.Weight) / float64(total), Masquerade: masq})
	}
	return list
}
