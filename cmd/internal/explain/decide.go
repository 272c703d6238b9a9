package explain

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// maxNamed is how many services, ports or endpoints a sentence names.
const maxNamed = 8

// A decision is what svcproxy does with a packet.
type decision struct {
	question Question
	world    *World
	family   policy.Family
	host     policy.Host
	uses     []use // services that have the address, in order of their names, with the frontends there
	sender   policy.Sender

	use      *use // whose frontend the packet is addressed to; nil: none
	frontend *policy.Frontend
	route    policy.Route
	outcome  string
	why      string // in words, unless it is balanced
	hint     string

	details map[netip.AddrPort]policy.Detail // of the endpoints of use
}

// A use is a service at the address that was asked for.
type use struct {
	claims.UnitService
	resolved  *policy.Resolved
	frontends []*policy.Frontend // at the address
}

// decide returns what svcproxy does with a packet that comes in by an interface; empty
// where this host sends it.
func decide(w *World, q Question, in string) *decision {
	fam := policy.FamilyOf(q.Dest)
	d := &decision{question: q, world: w, family: fam, host: w.Node.Host(fam)}
	d.sender = policy.Sender{Addr: q.Source, Host: isHost(w.Node, q.Source), Interface: in}
	if d.sender.Host {
		d.sender.Interface = ""
	}
	for _, s := range w.Services { // those that have the address
		if !d.has(s.Service) && !(d.servesNodePorts(s.Service, q.Dest) && s.HasNodePort()) {
			continue
		}
		res := policy.Resolve(s.Service, s.Conditions, w.Node, fam)
		if res == nil {
			continue
		}
		u := use{UnitService: s, resolved: res}
		for _, f := range res.Frontends {
			if f.Key.Addr == q.Dest || f.Key.Kind == policy.NodePort && slices.Contains(d.host.Addrs(f), q.Dest) {
				u.frontends = append(u.frontends, f)
			}
		}
		d.uses = append(d.uses, u)
	}
	slices.SortFunc(d.uses, func(a, b use) int { return a.Key.Compare(b.Key) })
	switch {
	case !slices.Contains(w.Families, fam):
		d.outcome, d.why = Untouched, fmt.Sprintf("%s is not programmed", fam)
		d.hint = "see families in svcproxy.toml, and svcproxy status"
	case q.Port == 0:
		if d.outcome = Listed; !slices.ContainsFunc(d.uses, func(u use) bool { return len(u.frontends) > 0 }) {
			d.notServed()
		}
	default:
		d.find()
	}
	return d
}

// notServed says what becomes of a packet to no frontend.
func (d *decision) notServed() {
	a := d.question.Dest
	d.outcome, d.why = Untouched, "no service has "+d.question.String()
	switch owner := d.refusing(); {
	case owner != "":
		d.outcome, d.why = Refused, owner
	case slices.ContainsFunc(d.host.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(d.host.ServiceCIDRExempt, a):
		d.outcome, d.why = Refused, fmt.Sprintf("%s is in service_cidrs and no service has it", a)
	case d.world.BindsAddresses && slices.ContainsFunc(d.uses, func(u use) bool { return slices.Contains(u.resolved.BoundAddrs, a) }):
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
	default: // why, in the words of svcproxy status
		d.outcome, d.why, d.hint = Refused, policy.Why(d.use.Subject, d.world.Node, d.frontend, d.route).String(), d.firstUnused()
		if d.route.Action == policy.Drop {
			d.outcome = Dropped
		}
	}
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
	i := slices.IndexFunc(d.use.Ports, func(p source.Port) bool {
		return p.Name == d.frontend.ServicePort.Port && p.Protocol == d.frontend.Key.Protocol
	})
	if i < 0 {
		return nil
	}
	p := d.use.Ports[i]
	var list []endpoint
	for i, s := range policy.States(d.use.Subject, d.world.Node, d.family, p, d.route.Pool.Scope) {
		e := &d.use.Endpoints[i]
		list = append(list, endpoint{e, i, e.Port(p), s})
	}
	return list
}

// masquerade reports whether the packet gets an address of this host as its source on its
// way to a target, and why or why not.
func (d *decision) masquerade(target netip.Addr) (bool, string) {
	switch m := d.route.Masquerade; {
	case d.answers():
		return false, "forward is " + d.route.Pool.Forward.String() + ", and endpoints answer the client themselves"
	case target == d.question.Source && slices.ContainsFunc(d.route.Pool.Targets, func(t policy.Target) bool { return t.Addr() == target }):
		return true, "it reaches itself" // hairpins are found by the address of a target and its own
	case m.Covers(d.sender, &d.host):
		return true, d.whyMasquerade(m)
	case m == policy.NonLocal:
		return false, "it is a local source"
	case d.frontend.Key.Kind == policy.VIP, d.use.ExternalTrafficPolicy == source.Cluster:
		return false, "masquerade is never"
	}
	return false, "external_traffic_policy is local"
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
		list = append(list, Expected{Address: t.AddrPort(), Share: float64(t.Weight) / float64(total), Masquerade: masq})
	}
	return list
}

// has reports whether the address is one of a service's own.
func (d *decision) has(s *source.Service) bool {
	return slices.Contains(slices.Concat(s.VIPs, s.ExternalIPs, s.LoadBalancerIPs), d.question.Dest)
}

// servesNodePorts reports whether an address serves node ports of a service, if it has any.
func (d *decision) servesNodePorts(s *source.Service, a netip.Addr) bool {
	return slices.Contains(d.world.Node.NodePortAddrsOf(s.NodePortAddresses), a) || d.host.LocalhostNodePorts && a == netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

func (d *decision) portText() string {
	return fmt.Sprintf("%d/%s", d.question.Port, d.question.Protocol)
}

// refusing says which service refuses other ports of the address; empty: none.
func (d *decision) refusing() string {
	for _, u := range d.uses {
		if slices.Contains(u.resolved.RefusedAddrs, d.question.Dest) {
			what := "a VIP"
			if !slices.Contains(u.VIPs, d.question.Dest) {
				what = "an announced address"
			}
			return fmt.Sprintf("%s has no port %s, and other ports of %s are refused", u.Key, d.portText(), what)
		}
	}
	return ""
}

// nearest says what comes nearest to what was asked for.
func (d *decision) nearest() string {
	if wanted := d.refusedUnit(); wanted != "" {
		return wanted
	}
	q, serves := d.question, []string(nil)
	for _, s := range d.world.Services {
		if s.Disabled && d.wants(s.Service) {
			return fmt.Sprintf("%s (%s), which has it, is disabled", s.Key, place(s))
		}
	}
	for _, u := range d.uses {
		for _, f := range u.frontends {
			serves = append(serves, fmt.Sprintf("%d/%s (%s)", f.Key.Port, f.Key.Protocol, f.ServicePort))
		}
	}
	if len(serves) > 0 {
		return fmt.Sprintf("%s serves %s", q.Dest, some(serves))
	}
	for _, s := range d.world.Services {
		if q.Port == 0 || !isHost(d.world.Node, q.Dest) || d.servesNodePorts(s.Service, q.Dest) {
			continue // it is no address of this host, or one for node ports
		}
		for _, p := range s.Ports {
			if p.NodePort == q.Port && p.Protocol == q.Protocol {
				return fmt.Sprintf("%d is a node port of %s, which %s does not serve: see node_port_addresses", q.Port, s.Key, q.Dest)
			}
		}
	}
	if len(d.world.Unread) > 0 {
		return "files with faults: " + some(d.world.Unread)
	}
	return ""
}

// refusedUnit names a file that is not used and wants the address.
func (d *decision) refusedUnit() string {
	for _, u := range d.world.Refused {
		for _, s := range u.Wanted {
			if d.wants(s) && len(u.Faults) > 0 {
				return fmt.Sprintf("%s, which has it, is not used as it stands: %s", s.Key, u.Faults[0].String())
			}
		}
	}
	return ""
}

// wants reports whether a service has the address and, if one was asked for, the port.
func (d *decision) wants(s *source.Service) bool {
	q, has := d.question, d.has(s)
	return slices.ContainsFunc(s.Ports, func(p source.Port) bool {
		served := has && (q.Port == 0 || p.Port == q.Port && p.Protocol == q.Protocol)
		return served || p.NodePort != 0 && p.NodePort == q.Port && p.Protocol == q.Protocol && d.servesNodePorts(s, q.Dest)
	})
}

// some names the first of a list, and how many more there are.
func some(list []string) string {
	if len(list) <= maxNamed {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
}

// isHost reports whether an address is one of this host.
func isHost(n *policy.Node, a netip.Addr) bool { return a.IsLoopback() || n.Owns(a) }

// place says where a service is from, as "web.toml:12:1".
func place(u claims.UnitService) string {
	if u.Pos.File == "" {
		return u.Unit.Name
	}
	return fmt.Sprintf("%s:%d", filepath.Base(u.Pos.File), max(u.Pos.Line, 1))
}

// condition returns what is known of an endpoint of the packet's service.
func (d *decision) condition(e *source.Endpoint) (policy.Condition, policy.Detail) {
	at := d.use.EndpointAt(e)
	if d.details == nil && d.world.Details != nil {
		d.details = d.world.Details(d.use.Key)
	}
	return d.use.Conditions[at], d.details[at]
}

// fails reports whether the check of an endpoint does.
func (d *decision) fails(e *source.Endpoint) bool {
	known, _ := d.condition(e)
	return d.use.HealthCheck != nil && known.Check == source.CheckFailed
}

// whyUnused says why an endpoint gets no new connections.
func (d *decision) whyUnused(e endpoint) string {
	_, detail := d.condition(e.Endpoint)
	switch e.state {
	case policy.Down:
		return downText(detail)
	case policy.Draining:
		return drainText(detail.Drain)
	case policy.Backup:
		return fmt.Sprintf("backup of tier %d, used when fewer than %d of lower tiers are usable", e.Tier, max(1, d.use.MinUp))
	case policy.Checking:
		return "checking: its check has no result yet"
	}
	return e.state.String()
}

// downText says why and for how long a check has failed: "DOWN: connect timed out (for 12s)".
func downText(d policy.Detail) string {
	text := "DOWN"
	switch {
	case d.Error != "":
		text += ": " + d.Error
	case !d.Asked.IsZero():
		text += ": its last answer was good, and more have to be"
	}
	if !d.Since.IsZero() {
		text += fmt.Sprintf(" (for %v)", seconds(time.Since(d.Since)))
	}
	return text
}

// drainText says who drains an endpoint, for how long, why and until when.
func drainText(d *policy.Drain) string {
	if d == nil {
		return "draining"
	}
	text := fmt.Sprintf("draining, by %s for %v", d.By, seconds(time.Since(d.At)))
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	if left := time.Until(d.Until); left > 0 {
		text += fmt.Sprintf(", %v left", seconds(left))
	}
	return text
}

func seconds(d time.Duration) time.Duration { return max(0, d.Truncate(time.Second)) }

// firstUnused names the first endpoint that is down or drained, and why; empty: there is none.
func (d *decision) firstUnused() string {
	for _, e := range d.endpoints() {
		if e.state == policy.Down || e.state == policy.Draining {
			return fmt.Sprintf("%s %s", netip.AddrPortFrom(e.Addr, e.port), d.whyUnused(e))
		}
	}
	return ""
}
