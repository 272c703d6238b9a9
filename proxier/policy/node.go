package policy

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// A Node is what Resolve must know of this host and of the settings. It is
// never changed once made; a change is a new Node.
type Node struct {
	Name, Zone string

	Addrs         []netip.Addr // of all interfaces but our own; without loopback and link-local; both families; sorted
	NodePortAddrs []netip.Addr // those of Addrs that serve node ports; sorted
	UpAddrs       []netip.Addr // those of Addrs whose interface is up; sorted
	PrimaryAddrs  []netip.Addr // those of UpAddrs that node_port_addresses means by "primary"; sorted
	LoopbackAddrs []netip.Addr // those of Addrs that no interface carries except loopback; sorted

	LocalhostNodePorts bool
	LocalCIDRs         []netip.Prefix
	LocalInterfaces    []string            // names, or prefixes ended by *
	Masquerade         source.Masquerading // of VIPs; zero: auto
	MarkBit            int                 // 0 to 31
	ServiceCIDRs       []netip.Prefix
}

// Owns reports whether an interface of this host carries a.
func (n *Node) Owns(a netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(n.Addrs, a, netip.Addr.Compare)
	return ok
}

// OwnsOnLink reports whether an interface of this host that has neighbours carries a.
func (n *Node) OwnsOnLink(a netip.Addr) bool {
	_, only := slices.BinarySearchFunc(n.LoopbackAddrs, a, netip.Addr.Compare)
	return n.Owns(a) && !only
}

// Equal reports whether two nodes are the same for Resolve.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone &&
		slices.Equal(n.Addrs, o.Addrs) &&
		slices.Equal(n.NodePortAddrs, o.NodePortAddrs) &&
		slices.Equal(n.UpAddrs, o.UpAddrs) &&
		slices.Equal(n.PrimaryAddrs, o.PrimaryAddrs) &&
		slices.Equal(n.LoopbackAddrs, o.LoopbackAddrs) &&
		n.LocalhostNodePorts == o.LocalhostNodePorts &&
		slices.Equal(n.LocalCIDRs, o.LocalCIDRs) &&
		slices.Equal(n.LocalInterfaces, o.LocalInterfaces) &&
		n.Masquerade == o.Masquerade && n.MarkBit == o.MarkBit &&
		slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs)
}

// NodePortAddrsOf returns the addresses that serve node ports of services with a selection of
// their own, sorted; nil: without one.
func (n *Node) NodePortAddrsOf(sel *source.NodeAddresses) []netip.Addr {
	if sel == nil {
		return n.NodePortAddrs
	}
	return lists.Keep(n.UpAddrs, func(a netip.Addr) bool { return sel.Match(a, slices.Contains(n.PrimaryAddrs, a)) })
}

// MasqueradeOf returns what holds for the VIPs of a service: its own, or else the setting.
func (n *Node) MasqueradeOf(svc *source.Service) source.Masquerading {
	return cmp.Or(svc.Masquerade, n.Masquerade, source.MasqueradeAuto)
}

// hasLocalSources reports whether anything except this host itself can be a local source.
func (n *Node) hasLocalSources() bool {
	return len(n.LocalCIDRs) > 0 || len(n.LocalInterfaces) > 0
}

// hasLocalSourcesOf is hasLocalSources in one family.
func (n *Node) hasLocalSourcesOf(fam Family) bool {
	return len(n.LocalInterfaces) > 0 || slices.ContainsFunc(n.LocalCIDRs, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == fam })
}

// Host returns what the rules of one family must know of the node.
func (n *Node) Host(fam Family) Host {
	isFam := func(a netip.Addr) bool { return FamilyOf(a) == fam }
	prefixes := func(in []netip.Prefix) []netip.Prefix {
		return lists.Keep(in, func(p netip.Prefix) bool { return isFam(p.Addr()) })
	}
	h := Host{
		MarkBit:            n.MarkBit,
		NodePortAddrs:      lists.Keep(n.NodePortAddrs, isFam),
		LocalhostNodePorts: n.LocalhostNodePorts && fam == IPv4,
		LocalCIDRs:         prefixes(n.LocalCIDRs),
		LocalInterfaces:    n.LocalInterfaces,
		ServiceCIDRs:       prefixes(n.ServiceCIDRs),
	}
	h.ServiceCIDRExempt = lists.Keep(n.Addrs, func(a netip.Addr) bool { return isFam(a) && InAny(h.ServiceCIDRs, a) })
	return h
}

// PerFamily is a number for each address family.
type PerFamily struct{ IPv4, IPv6 int }

// Of returns the number for one family.
func (p PerFamily) Of(fam Family) int {
	if fam == IPv6 {
		return p.IPv6
	}
	return p.IPv4
}

// Rose reports whether a family has endpoints that had none.
func (p PerFamily) Rose(from PerFamily) bool {
	return from.IPv4 == 0 && p.IPv4 > 0 || from.IPv6 == 0 && p.IPv6 > 0
}

// A Host is what rules depend on of this host, in one family.
type Host struct {
	MarkBit            int            // bit of the packet mark that is ours, 0 to 31
	NodePortAddrs      []netip.Addr   // serve node ports; sorted
	LocalhostNodePorts bool           // 127.0.0.1 does too; never for IPv6
	LocalCIDRs         []netip.Prefix // local sources, see Masquerade and Frontend.FromLocal
	LocalInterfaces    []string       // the same by input interface; a prefix ends in *
	ServiceCIDRs       []netip.Prefix // an address in them that no interface of this host carries is rejected where no frontend takes the packet
	ServiceCIDRExempt  []netip.Addr   // addresses of this host in ServiceCIDRs: not refused; sorted
}

// Equal reports whether two hosts are the same for rules.
func (h *Host) Equal(o *Host) bool { return reflect.DeepEqual(h, o) }

// Mark returns the mark bit as a mask.
func (h *Host) Mark() uint32 { return 1 << h.MarkBit }

// InAny reports whether a is in one of the prefixes.
func InAny(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}
