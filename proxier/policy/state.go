package policy

import (
	"bytes"
	"cmp"
	"iter"
	"net/netip"
	"reflect"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
	"svcproxy.dev/svcproxy/source"
)

// A State is everything this node must hold for one address family. It belongs
// to one goroutine of the Loop, is changed only between Syncs, and is never kept by a Backend;
// what it points to (Resolved, Frontend, Pool) never changes and may be kept.
type State struct {
	Family   Family
	Host     Host
	Services map[source.Key]*Resolved

	// What several services may need at once, with how many do.
	RefusedVIPs map[netip.Addr]int // VIPs and announced addresses: new connections that no frontend takes are rejected, and nothing is forwarded there
	Hairpins    map[Hairpin]int    // targets of routes that do not masquerade everyone
	BoundAddrs  map[netip.Addr]int // of frontends, that no interface of this host carries but ours may
}

// A Host is what rules depend on of this host, in one family.
type Host struct {
	MarkBit            int            // bit of the packet mark that is ours, 0 to 31
	NodePortAddrs      []netip.Addr   // serve node ports; sorted
	LocalhostNodePorts bool           // 127.0.0.1 does too; never for IPv6
	LocalCIDRs         []netip.Prefix // local sources, see Masquerade and Frontend.Local
	LocalInterfaces    []string       // the same by input interface; a prefix ends in *
	ServiceCIDRs       []netip.Prefix // an address in them that no interface of this host carries is rejected where no frontend takes the packet
	ServiceCIDRExempt  []netip.Addr   // addresses of this host in ServiceCIDRs: not refused; sorted
}

// Equal reports whether two hosts are the same for rules.
func (h *Host) Equal(o *Host) bool { return reflect.DeepEqual(h, o) }

// Mark returns the mark bit as a mask.
func (h *Host) Mark() uint32 { return 1 << h.MarkBit }

// A Hairpin is a target that may reach itself through a frontend, and whose
// packets must then be masqueraded: source and destination are its address.
type Hairpin struct {
	addr     [16]byte // less than half of what a netip.AddrPort takes: there may be one for each endpoint
	port     uint16
	Protocol source.Protocol
}

// NewHairpin returns that of a target, whose address is valid and not IPv4-mapped.
func NewHairpin(at netip.AddrPort, protocol source.Protocol) Hairpin {
	return Hairpin{at.Addr().As16(), at.Port(), protocol}
}

// AddrPort returns the address and port of the target.
func (h Hairpin) AddrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(h.addr).Unmap(), h.port)
}

// Compare orders hairpins of one family by address, port and protocol.
func (h Hairpin) Compare(o Hairpin) int {
	return cmp.Or(bytes.Compare(h.addr[:], o.addr[:]), cmp.Compare(h.port, o.port), cmp.Compare(h.Protocol, o.Protocol))
}

// A Resolved is one service's part of a State.
type Resolved struct {
	Key       source.Key
	Frontends []*Frontend // sorted by Key
	Pools     []*Pool     // those of the frontends, each once, in order of the service's ports

	// What it adds to the counted sets of the State; no duplicates.
	RefusedVIPs, BoundAddrs []netip.Addr
	HairpinPools            []*Pool // those of Pools whose targets are Hairpins

	Announced []Announcement // of each address that is to be announced, by each of the means; sorted

	Warnings []string // what its owner should know, for the log and for status
}

// AllFrontends returns Frontends; r may be nil: none.
func (r *Resolved) AllFrontends() []*Frontend {
	if r == nil {
		return nil
	}
	return r.Frontends
}

// Hairpins yields the targets that may reach themselves, each once.
func (r *Resolved) Hairpins() iter.Seq[Hairpin] {
	return func(yield func(Hairpin) bool) {
		seen := make(map[Hairpin]bool) // of several pools
		for _, p := range r.HairpinPools {
			for _, t := range p.Targets {
				h := NewHairpin(t.AddrPort, p.Protocol)
				if seen[h] {
					continue
				}
				if len(r.HairpinPools) > 1 {
					seen[h] = true
				}
				if !yield(h) {
					return
				}
			}
		}
	}
}

// OnlyFor returns a State that holds one frontend of a service, on the host of a node, and
// nothing else.
func OnlyFor(node *Node, fam Family, res *Resolved, f *Frontend) *State {
	one := *res
	one.Frontends = []*Frontend{f}
	one.Pools = lists.Keep(res.Pools, func(p *Pool) bool { return f.Outside.Pool == p || f.Local.Pool == p })
	st := EmptyState(fam, node)
	st.Services[res.Key] = &one
	if slices.Contains(res.RefusedVIPs, f.Key.Addr) {
		st.RefusedVIPs[f.Key.Addr] = 1
	}
	if slices.Contains(res.BoundAddrs, f.Key.Addr) {
		st.BoundAddrs[f.Key.Addr] = 1
	}
	return st
}
