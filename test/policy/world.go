package policy

import (
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A World is all that the outcome of a packet depends on: the services, the host, and what is
// known of endpoints. The services are valid and do not claim the same thing twice. It holds for every mode,
// apart from what docs/packets.md lists as differences.
type World struct {
	Host     Host
	Services []*source.Service
	Known    map[source.Key]map[netip.AddrPort]Known // by Service.EndpointAt; a missing one is the zero Known
}

// A Host is the node: its settings and its addresses.
type Host struct {
	Name, Zone string
	Addresses  []Address

	NodePortAddresses *source.NodeAddresses // the setting
	LocalCIDRs        []netip.Prefix
	LocalInterfaces   []string // names, or prefixes followed by *
	Masquerade        source.Masquerading
	ServiceCIDRs      []netip.Prefix
}

// An Address is carried by an interface of the host other than svcproxy's own.
type Address struct {
	netip.Addr
	Up      bool // its interface is up
	Primary bool // it is one that "primary" means
}

// Known is what the daemon knows of an endpoint beside what its file says.
type Known struct {
	Check   Check
	Drained bool
	Share   int // tenths of its weight, 1 to 9, while it starts slowly; 0: all of it
}

// A Check is the state of an endpoint by its health check.
type Check int

// The states. Unknown: no answer has come yet.
const (
	Unknown Check = iota
	Passed
	Failed
)

// A Packet is the first of a connection, as it reaches the host or leaves a process of it.
type Packet struct {
	Protocol source.Protocol
	From     netip.Addr
	To       netip.AddrPort

	Process   bool   // a process of this host sends it
	Interface string // by which it comes in; empty where a process sends it
}

// carries reports whether an interface of the host has an address.
func (h *Host) carries(a netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(own Address) bool { return own.Addr == a })
}

// isLocal reports whether the sender is a local source by the settings.
func (h *Host) isLocal(p Packet) bool {
	if inAny(h.LocalCIDRs, p.From) {
		return true
	}
	return slices.ContainsFunc(h.LocalInterfaces, func(pattern string) bool {
		prefix, wild := strings.CutSuffix(pattern, "*")
		return !p.Process && (p.Interface == pattern || wild && strings.HasPrefix(p.Interface, prefix))
	})
}

// knowsLocal reports whether a source of a family may be local by the settings.
func (h *Host) knowsLocal(four bool) bool {
	return len(h.LocalInterfaces) > 0 || slices.ContainsFunc(h.LocalCIDRs, func(r netip.Prefix) bool { return r.Addr().Is4() == four })
}

// servesNodePorts reports whether an address serves the node ports of a service.
func (h *Host) servesNodePorts(s *source.Service, a netip.Addr) bool {
	chosen := h.NodePortAddresses
	if s.NodePortAddresses != nil {
		chosen = s.NodePortAddresses
	}
	i := slices.IndexFunc(h.Addresses, func(own Address) bool { return own.Addr == a })
	return chosen != nil && i >= 0 && h.Addresses[i].Up && chosen.Match(a, h.Addresses[i].Primary)
}

// runs reports whether an endpoint is local.
func (h *Host) runs(e *source.Endpoint) bool {
	if node := e.Extras().Node; node != "" {
		return node == h.Name
	}
	return h.carries(e.Addr)
}

func inAny(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}
