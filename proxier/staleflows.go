package proxier

import (
	"net/netip"
	"slices"

	"svcproxy/source"
)

// staleFlows gathers which UDP flows are to be removed from connection
// tracking once the kernel's rules have been synced: it would otherwise send a
// flow where it went before, for as long as it lasts.
//
// A flow that goes elsewhere can come back after that: an answer that was under
// way looks like a new flow, from the frontend to the client, and the client's
// later packets pass for its answers. So there is a second look a little later.
type staleFlows struct {
	node *Node
	look map[netip.AddrPort]fate // by address of the frontend
}

// A fate says what becomes of the flows to one frontend.
type fate struct {
	present []netip.AddrPort // sorted; a flow to one of these stays
	gone    []netip.AddrPort // sorted; the frontend is gone: only flows to one of these were ours, and go
	removed bool             // the frontend is gone
	foreign bool             // no interface of this host carries the address: it sends nothing from there
}

// removedBy notes the frontends that a change of one service took away.
func (s *staleFlows) removedBy(ch ServiceChange, host *Host) {
	now := udpFrontends(ch.New)
	for key, f := range udpFrontends(ch.Old) {
		if now[key] == nil {
			s.note(key, fate{removed: true, gone: f.present()}, host)
		}
	}
}

// changedBy notes the frontends whose flows may now be at a wrong place.
func (s *staleFlows) changedBy(ch ServiceChange, host *Host) {
	old := udpFrontends(ch.Old)
	for key, f := range udpFrontends(ch.New) {
		if o := old[key]; o == nil || o.Outside.Action != f.Outside.Action || !subset(o.present(), f.present()) {
			s.note(key, fate{present: f.present()}, host)
		}
	}
}

// all notes every UDP frontend of st.
func (s *staleFlows) all(st *State) {
	for _, r := range st.Services {
		s.changedBy(ServiceChange{New: r}, &st.Host)
	}
}

func (s *staleFlows) note(key FrontendKey, f fate, host *Host) {
	if s.look == nil {
		s.look = make(map[netip.AddrPort]fate)
	}
	f.foreign = key.Kind != NodePort && !s.node.Owns(key.Addr)
	for _, a := range host.addrs(key) {
		s.look[netip.AddrPortFrom(a, key.Port)] = f
	}
}

// stale tells whether a flow has to go.
func (s *staleFlows) stale(f Flow) bool {
	if from, ours := s.look[f.Src]; ours && from.foreign && !from.removed {
		return true // it is an answer
	}
	to, ours := s.look[f.Dst]
	switch {
	case !ours:
		return false
	case to.removed:
		return contains(to.gone, f.Reply)
	}
	return !contains(to.present, f.Reply)
}

// merge adds what o looks for.
func (s *staleFlows) merge(o *staleFlows) {
	for addr, f := range o.look {
		s.look[addr] = f
	}
}

// udpFrontends returns those frontends of r that flows can stick to.
func udpFrontends(r *Resolved) map[FrontendKey]*Frontend {
	if r == nil {
		return nil
	}
	var out map[FrontendKey]*Frontend
	for _, f := range r.Frontends {
		if f.Key.Protocol != source.UDP {
			continue
		}
		if out == nil {
			out = make(map[FrontendKey]*Frontend)
		}
		out[f.Key] = f
	}
	return out
}

// present returns all endpoints that a flow to f may be at: those that get new
// ones and those that keep what they have.
func (f *Frontend) present() []netip.AddrPort {
	var out []netip.AddrPort
	for _, leg := range []Leg{f.Outside, f.Local} {
		for _, t := range leg.Pool.Targets {
			out = append(out, t.AddrPort)
		}
		out = append(out, leg.Pool.Kept...)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// subset tells whether every element of a is in b. Both are sorted.
func subset(a, b []netip.AddrPort) bool {
	for _, v := range a {
		if !contains(b, v) {
			return false
		}
	}
	return true
}

// contains tells whether v is in list, which is sorted.
func contains(list []netip.AddrPort, v netip.AddrPort) bool {
	_, ok := slices.BinarySearchFunc(list, v, netip.AddrPort.Compare)
	return ok
}

// addrs returns the addresses that a frontend is reached at.
func (h *Host) addrs(key FrontendKey) []netip.Addr {
	if key.Kind != NodePort {
		return []netip.Addr{key.Addr}
	}
	if h.LocalhostNodePorts {
		return append(slices.Clip(h.NodePortAddrs), netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	return h.NodePortAddrs
}
