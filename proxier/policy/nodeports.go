package policy

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/internal/lists"
)

// Addrs returns the addresses that a frontend is reached at: several of a node port, or none.
// The list is not to be changed.
func (h *Host) Addrs(f *Frontend) []netip.Addr {
	if f.Key.Kind != NodePort {
		return []netip.Addr{f.Key.Addr}
	}
	list := h.NodePortAddrs
	if f.Placed {
		list = f.NodePortAddrs
	}
	if h.LocalhostNodePorts {
		return append(slices.Clip(list), netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return list
}

// AddrsIfAny returns the addresses of a frontend that may be nil.
func (h *Host) AddrsIfAny(f *Frontend) []netip.Addr {
	if f == nil {
		return nil
	}
	return h.Addrs(f)
}

// AddrsBut returns the addresses of a list that are not in another one.
func AddrsBut(list, other []netip.Addr) []netip.Addr {
	return lists.Keep(list, func(a netip.Addr) bool { return !slices.Contains(other, a) })
}

// setNodePortAddrs sets which addresses serve the frontend of a node port, and reports whether any does.
func (r *resolver) setNodePortAddrs(f *Frontend) bool {
	sel := r.svc.NodePortAddresses
	if sel == nil {
		return true
	}
	f.Placed = true
	f.NodePortAddrs = lists.Keep(r.node.NodePortAddrsOf(sel), func(a netip.Addr) bool { return FamilyOf(a) == r.fam })
	return len(f.NodePortAddrs) > 0 || r.node.LocalhostNodePorts && r.fam == IPv4
}
