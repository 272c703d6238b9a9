package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// maxNamed is how many services, ports or endpoints a sentence names.
const maxNamed = 8

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

func (d *decision) portText() string {
	return fmt.Sprintf("%d/%s", d.question.Port, d.question.Protocol)
}

// refusing says which service refuses other ports of the address; empty: none.
func (d *decision) refusing() string {
	for _, u := range d.uses {
		if slices.Contains(u.resolved.RefusedVIPs, d.question.Dest) {
			what := "a VIP"
			if !slices.Contains(u.VIPs, d.question.Dest) {
				what = "an announced address"
			}
			return fmt.Sprintf("%s has no port %s, and other ports of %s are refused", u.Key, d.portText(), what)
		}
	}
	return ""
}

func (d *decision) inServiceCIDR(a netip.Addr) bool {
	in := slices.ContainsFunc(d.host.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	return in && !slices.Contains(d.host.ServiceCIDRExempt, a)
}

func (d *decision) bound(a netip.Addr) bool {
	return slices.ContainsFunc(d.uses, func(u use) bool { return slices.Contains(u.resolved.BoundAddrs, a) })
}

// nearest says what comes nearest to what was asked for.
func (d *decision) nearest() string {
	if wanted := d.refusedUnit(); wanted != "" {
		return wanted
	}
	if off := d.disabledService(); off != "" {
		return off
	}
	var serves []string
	for _, u := range d.uses {
		for _, f := range u.frontends {
			serves = append(serves, fmt.Sprintf("%d/%s (%s)", f.Key.Port, f.Key.Protocol, f.ServicePort))
		}
	}
	if len(serves) > 0 {
		return fmt.Sprintf("%s serves %s", d.question.Dest, some(serves))
	}
	if port := d.nodePortElsewhere(); port != "" {
		return port
	}
	if len(d.world.Unread) > 0 {
		return "files with faults: " + some(d.world.Unread)
	}
	return ""
}

// nodePortElsewhere: the address is one of this host, but not one for node ports.
func (d *decision) nodePortElsewhere() string {
	q := d.question
	if !isHost(d.world.Node, q.Dest) || q.Port == 0 {
		return ""
	}
	for _, s := range d.world.Services {
		if d.servesNodePorts(s.Service, q.Dest) {
			continue
		}
		for _, p := range s.Ports {
			if p.NodePort == q.Port && p.Protocol == q.Protocol {
				return fmt.Sprintf("%d is a node port of %s, which %s does not serve: see node_port_addresses", q.Port, s.Key, q.Dest)
			}
		}
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
	q := d.question
	has := slices.Contains(s.VIPs, q.Dest) || slices.Contains(s.ExternalIPs, q.Dest) || slices.Contains(s.LoadBalancerIPs, q.Dest)
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

// announced says whether the network is told of the address. A packet that has come is not in
// question: one that has not may be why.
func (r *Report) announced(d *decision) {
	for _, a := range d.world.Announced {
		switch {
		case a.Address != d.question.Dest:
		case a.Announced:
			r.say(serviceStep, "announced by "+a.Means)
		default:
			r.say(serviceStep, fmt.Sprintf("NOT announced by %s: %s", a.Means, a.Reason))
		}
	}
}
