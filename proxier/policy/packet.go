package policy

import (
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/internal/lists"
)

// A Sender is who sends a packet, as far as policy asks.
type Sender struct {
	Addr      netip.Addr
	Host      bool   // a process of this host
	Interface string // by which the packet comes in; of the host's own: empty
}

// LocalBy returns the setting that makes a sender a local source, as in "local_cidrs
// 10.0.0.0/8"; empty: none does. The host itself needs none.
func (h *Host) LocalBy(s Sender) string {
	for _, p := range h.LocalCIDRs {
		if p.Contains(s.Addr) {
			return "local_cidrs " + p.String()
		}
	}
	for _, name := range h.LocalInterfaces {
		stem, isPrefix := strings.CutSuffix(name, "*")
		if !s.Host && (s.Interface == name || isPrefix && s.Interface != "" && strings.HasPrefix(s.Interface, stem)) {
			return "local_interfaces " + name
		}
	}
	return ""
}

// RouteOf returns what becomes of packets of a sender.
func (f *Frontend) RouteOf(s Sender, h *Host) Route {
	if s.Host || h.LocalBy(s) != "" {
		return f.FromLocal
	}
	return f.Outside
}

// Admits reports whether an address may use the frontend.
func (f *Frontend) Admits(a netip.Addr) bool {
	_, in := f.rangeOf(a)
	return in || !f.Restricted
}

// Covers reports whether packets of a sender have their source replaced, apart from hairpins.
func (m Masquerade) Covers(s Sender, h *Host) bool {
	switch m {
	case Everyone:
		return true
	case HostProcesses:
		return s.Host
	case NonLocal:
		return h.LocalBy(s) == ""
	}
	return false
}

// Addrs returns the addresses that a frontend is reached at: several of a node port, or none; f may be nil.
// The list is not to be changed.
func (h *Host) Addrs(f *Frontend) []netip.Addr {
	if f == nil {
		return nil
	}
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

// AddrsBut returns the addresses of a list that are not in another one.
func AddrsBut(list, other []netip.Addr) []netip.Addr {
	return lists.Keep(list, func(a netip.Addr) bool { return !slices.Contains(other, a) })
}

// rangeOf returns the source range that has an address, if one has.
func (f *Frontend) rangeOf(a netip.Addr) (netip.Prefix, bool) {
	i, found := slices.BinarySearchFunc(f.SourceRanges, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	if found {
		return f.SourceRanges[i], true
	}
	if i == 0 || !f.SourceRanges[i-1].Contains(a) {
		return netip.Prefix{}, false
	}
	return f.SourceRanges[i-1], true
}
