// Package policy is what happens to packets, as one pure function: an independent reading of
// docs/packets.md. It imports nothing that decides or programs anything, so that a mistake there is
// not repeated here. Package program says what the program decides, and the test compares the two.
//
// The names follow the page: a frontend is an address, port and protocol of a service, or a node port.
package policy

import (
	"maps"
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/source"
)

// A Verdict is what becomes of a packet.
type Verdict int

// Balanced: it goes to an endpoint. Refused: answered at once, by a TCP reset or an ICMP error.
// Dropped: never answered. Untouched: as if svcproxy did not run.
const (
	Balanced Verdict = iota
	Refused
	Dropped
	Untouched
)

func (v Verdict) String() string {
	return [...]string{"balanced", "refused", "dropped", "untouched"}[v]
}

// An Outcome is one thing that may happen to a packet.
type Outcome struct {
	Verdict     Verdict
	Endpoint    netip.AddrPort // of Balanced
	Masqueraded bool           // of Balanced: the endpoint sees an address of this host
}

// Outcomes are all that may happen to a packet, with the share of packets that meet each, relative to the others.
type Outcomes map[Outcome]int

// Equal reports whether two packets meet the same outcomes, with the same shares.
func (o Outcomes) Equal(p Outcomes) bool { return maps.Equal(o.reduced(), p.reduced()) }

// reduced returns outcomes with the least whole numbers that are in proportion to their shares.
func (o Outcomes) reduced() Outcomes {
	divisor := 0
	for _, n := range o {
		for a := n; a != 0; {
			a, divisor = divisor%a, a
		}
	}
	out := Outcomes{}
	for k, n := range o {
		out[k] = n / max(divisor, 1)
	}
	return out
}

func only(v Verdict) Outcomes { return Outcomes{{Verdict: v}: 1} }

// Service returns the service that a packet is addressed to; nil: none.
func (w *World) Service(p Packet) *source.Service {
	s, _, _ := w.addressed(p)
	if s == nil {
		s, _ = w.nodePort(p)
	}
	return s
}

// Legal returns what the contract allows for a packet.
func Legal(w *World, p Packet) Outcomes {
	if s, port, list := w.addressed(p); s != nil {
		return w.balance(s, port, list, p)
	}
	if s, port := w.nodePort(p); s != nil {
		return w.balance(s, port, nodePortList, p)
	}
	return only(w.unserved(p))
}

// unserved returns what becomes of a packet to a port that no service has there.
func (w *World) unserved(p Packet) Verdict {
	a := p.To.Addr()
	isVIP := slices.ContainsFunc(w.Services, func(s *source.Service) bool { return !s.Disabled && slices.Contains(s.VIPs, a) })
	if !w.Host.carries(a) && (isVIP || w.leadsBack(a)) {
		return Refused
	}
	return Untouched
}

// leadsBack reports whether packets to an address that are not balanced would leave the host again, to
// a router that sends them here: one that this host announces, or one of service_cidrs.
func (w *World) leadsBack(a netip.Addr) bool {
	announced := slices.ContainsFunc(w.Services, func(s *source.Service) bool {
		return !s.Disabled && s.Announce&source.BGP != 0 && slices.Contains(s.AnnouncedAddrs(), a)
	})
	return announced || inAny(w.Host.ServiceCIDRs, a)
}

// The lists of addresses by their key in a service file. Node ports are on addresses of the host.
const (
	vipList          = "vips"
	loadBalancerList = "load_balancer_ips"
	nodePortList     = "node ports"
)

// addressed returns the service port that has the destination of a packet among its addresses.
func (w *World) addressed(p Packet) (*source.Service, source.Port, string) {
	for _, s := range w.Services {
		for _, list := range s.AddressLists() {
			if s.Disabled || !slices.Contains(list.Addrs, p.To.Addr()) {
				continue
			}
			for _, port := range s.Ports {
				if port.Protocol == p.Protocol && port.Port == p.To.Port() && !isAnothers(s, port.Protocol, p.To) {
					return s, port, list.Key
				}
			}
		}
	}
	return nil, source.Port{}, ""
}

// isAnothers reports whether an address and port that a service names is another one's.
func isAnothers(s *source.Service, protocol source.Protocol, at netip.AddrPort) bool {
	return slices.Contains(s.Without, source.PortAddr{Protocol: protocol, AddrPort: at})
}

// nodePort returns the service port whose node port a packet is addressed to.
func (w *World) nodePort(p Packet) (*source.Service, source.Port) {
	for _, s := range w.Services {
		for _, port := range s.Ports {
			matches := port.NodePort != 0 && port.NodePort == p.To.Port() && port.Protocol == p.Protocol && isOfFamily(s, p.To.Addr())
			if matches && !s.Disabled && !isAnothers(s, port.Protocol, netip.AddrPortFrom(netip.Addr{}, port.NodePort)) && w.Host.servesNodePorts(s, p.To.Addr()) {
				return s, port
			}
		}
	}
	return nil, source.Port{}
}

// isOfFamily reports whether a service is of the family of an address: that of one of its own
// addresses or, where it has node ports only, either.
func isOfFamily(s *source.Service, a netip.Addr) bool {
	none := true
	for _, list := range s.AddressLists() {
		for _, own := range list.Addrs {
			if none = false; own.Is4() == a.Is4() {
				return true
			}
		}
	}
	return none
}

// balance returns what becomes of a packet to a service port, by the list that has its address.
func (w *World) balance(s *source.Service, port source.Port, list string, p Packet) Outcomes {
	if !w.admits(s, s.SourceRanges, p) || list == loadBalancerList && !w.admits(s, s.LoadBalancerSourceRanges, p) {
		return only(Dropped)
	}
	internal := list == vipList
	pool := w.pool(s, port, p.To.Addr().Is4())
	usable := pool.usable(anywhere)
	if !internal && s.ExternalTrafficPolicy == source.Local && !p.Process && !w.Host.isLocal(p) ||
		internal && s.InternalTrafficPolicy == source.Local {
		usable = pool.usable(here)
		if len(usable) == 0 && len(pool.usable(anywhere)) > 0 {
			return only(Dropped)
		}
	}
	if len(usable) == 0 {
		return only(Refused)
	}
	out := Outcomes{}
	for _, e := range usable {
		at := netip.AddrPortFrom(e.Addr, e.Port(port))
		out[Outcome{Balanced, at, w.masquerades(s, internal, p) || e.Addr == p.From}] = pool.share(e)
	}
	return out
}

// admits reports whether a list of ranges of a service admits the sender. A list without ranges admits
// everybody. A range that has an address of the host admits the host, under each of its addresses and
// under the one that it sends to; an address inside local_cidrs counts for that only if it serves node ports.
func (w *World) admits(s *source.Service, ranges []netip.Prefix, p Packet) bool {
	if len(ranges) == 0 || inAny(ranges, p.From) {
		return true
	}
	isHost := w.Host.carries(p.From) || p.From == p.To.Addr()
	return isHost && slices.ContainsFunc(w.Host.Addresses, func(own Address) bool {
		counts := !inAny(w.Host.LocalCIDRs, own.Addr) || w.Host.servesNodePorts(s, own.Addr)
		return counts && own.Is4() == p.From.Is4() && inAny(ranges, own.Addr)
	})
}

// masquerades reports whether the source of a balanced packet is replaced, hairpins apart.
func (w *World) masquerades(s *source.Service, internal bool, p Packet) bool {
	if !internal {
		return p.Process || s.ExternalTrafficPolicy != source.Local && s.Masquerade != source.MasqueradeNever
	}
	setting := s.Masquerade
	if setting == source.MasqueradeAsSet {
		setting = w.Host.Masquerade
	}
	switch setting {
	case source.MasqueradeAll:
		return true
	case source.MasqueradeNever:
		return false
	}
	if s.InCluster && !w.Host.knowsLocal(p.To.Addr().Is4()) {
		return false
	}
	return !w.Host.isLocal(p)
}
