package policy

import (
	"cmp"
	"iter"
	"net/netip"
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

	// What several services, or pools, may need at once, with how many do.
	RefusedAddrs map[netip.Addr]int // VIPs and announced addresses: new connections that no frontend takes are rejected, and nothing is forwarded there
	Hairpins     map[Hairpin]int    // targets of routes that do not masquerade everyone
	BoundAddrs   map[netip.Addr]int // of frontends, that no interface of this host carries but ours may
}

// A Hairpin is a target that may reach itself through a frontend, and whose
// packets must then be masqueraded: source and destination are its address.
type Hairpin struct {
	address
	port     uint16
	Protocol source.Protocol
}

// NewHairpin returns that of a target, whose address is valid and not IPv4-mapped.
func NewHairpin(at netip.AddrPort, protocol source.Protocol) Hairpin {
	return Hairpin{addressOf(at.Addr()), at.Port(), protocol}
}

// AddrPort returns the address and port of the target.
func (h Hairpin) AddrPort() netip.AddrPort { return netip.AddrPortFrom(h.Addr(), h.port) }

// hairpins yields the targets of a pool as such.
func (p *Pool) hairpins() iter.Seq[Hairpin] {
	return func(yield func(Hairpin) bool) {
		for _, t := range p.Targets {
			if !yield(Hairpin{t.address, t.port, p.Protocol}) {
				return
			}
		}
	}
}

// Compare orders hairpins of one family by address, port and protocol.
func (h Hairpin) Compare(o Hairpin) int {
	return cmp.Or(h.address.compare(o.address), cmp.Compare(h.port, o.port), cmp.Compare(h.Protocol, o.Protocol))
}

// A Resolved is one service's part of a State.
type Resolved struct {
	Key       source.Key
	Frontends []*Frontend // sorted by Key
	Pools     []*Pool     // those of the frontends, each once, in order of the service's ports

	// What it adds to the counted sets of the State; no duplicates.
	RefusedAddrs, BoundAddrs []netip.Addr
	HairpinPools             []*Pool // those of Pools whose targets are Hairpins

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

// OnlyFor returns a State that holds one frontend of a service, on the host of a node, and
// nothing else.
func OnlyFor(node *Node, fam Family, res *Resolved, f *Frontend) *State {
	one := *res
	one.Frontends = []*Frontend{f}
	one.Pools = lists.Keep(res.Pools, func(p *Pool) bool { return f.Outside.Pool == p || f.FromLocal.Pool == p })
	st := EmptyState(fam, node)
	st.Services[res.Key] = &one
	if slices.Contains(res.RefusedAddrs, f.Key.Addr) {
		st.RefusedAddrs[f.Key.Addr] = 1
	}
	if slices.Contains(res.BoundAddrs, f.Key.Addr) {
		st.BoundAddrs[f.Key.Addr] = 1
	}
	return st
}

// Endpoints yields where the endpoints of a service are, some of them several times.
func (r *Resolved) Endpoints() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, p := range r.Pools {
			for _, t := range p.Targets {
				if !yield(t.AddrPort()) {
					return
				}
			}
			for _, list := range [][]netip.AddrPort{p.Kept, p.Closed} {
				for _, a := range list {
					if !yield(a) {
						return
					}
				}
			}
		}
	}
}

// Has reports whether an endpoint of the service is there.
func (r *Resolved) Has(at netip.AddrPort) bool {
	for a := range r.Endpoints() {
		if a == at {
			return true
		}
	}
	return false
}

// Pool returns the pool of the same name, nil if there is none; r may be nil.
func (r *Resolved) Pool(like *Pool) *Pool {
	if r == nil {
		return nil
	}
	for _, p := range r.Pools {
		if p.ServicePort == like.ServicePort && p.Scope == like.Scope && p.Protocol == like.Protocol {
			return p
		}
	}
	return nil
}

// FrontendsAt returns the frontends of an address; r may be nil.
func (r *Resolved) FrontendsAt(a netip.Addr) []*Frontend {
	return lists.Keep(r.AllFrontends(), func(f *Frontend) bool { return f.Key.Addr == a && f.Key.Kind != NodePort })
}

// Announcement returns the one of the same address and means; nil: there is none.
func (r *Resolved) Announcement(x Announcement) *Announcement {
	if r == nil {
		return nil
	}
	i := slices.IndexFunc(r.Announced, func(n Announcement) bool { return n.Addr == x.Addr && n.Means == x.Means })
	if i < 0 {
		return nil
	}
	return &r.Announced[i]
}

// Balances reports whether packets to an address are sent to endpoints; r may be nil.
func (r *Resolved) Balances(a netip.Addr) bool {
	return slices.ContainsFunc(r.FrontendsAt(a), func(f *Frontend) bool { return f.Outside.Action == Balance })
}

// EmptyState returns a State without services.
func EmptyState(fam Family, node *Node) *State {
	return &State{
		Family:       fam,
		Host:         node.Host(fam),
		Services:     make(map[source.Key]*Resolved),
		RefusedAddrs: make(map[netip.Addr]int),
		Hairpins:     make(map[Hairpin]int),
		BoundAddrs:   make(map[netip.Addr]int),
	}
}
