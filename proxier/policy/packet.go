package policy

import (
	"net/netip"
	"strings"
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
		return f.Local
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
