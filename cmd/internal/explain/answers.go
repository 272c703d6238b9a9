package explain

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// behindRouter reports whether a packet that is sent as it is would get to a router, and not to
// its endpoint.
func (w *way) behindRouter(e *Expected, t lookup) bool {
	if !w.d.answers() || w.d.route.Pool.Forward.Method != source.ForwardDirect || !t.Via.IsValid() {
		return false
	}
	w.addProblem(Problem{Step: routeStep, Sure: true, order: routeOrder, Endpoint: []netip.AddrPort{e.Address},
		Text: fmt.Sprintf("the endpoint is behind the router %s, which sends packets to %s back", t.Via, w.d.question.Dest),
		Hint: "forward = \"tunnel\" gets through routers"})
	return true
}

// answersDirectly reports whether an endpoint that sees the client's address answers it on their common
// link. Nothing translates the answer back then, and the client, which asked another address, drops it.
func (w *way) answersDirectly(e *Expected, t lookup) bool {
	if e.Masquerade || w.d.answers() || t.Local || t.Via.IsValid() || t.Interface != w.f.back.Interface {
		return false
	}
	subnet := w.f.link.shared(w.d.question.Source, e.Address.Addr())
	if !subnet.IsValid() {
		return false
	}
	p := Problem{Step: routeStep, Sure: true, order: backOrder, Endpoint: []netip.AddrPort{e.Address},
		Text: fmt.Sprintf("the endpoint answers past this host: the client keeps its address, and both are in %s on %s", subnet, t.Interface),
		Hint: w.howToMasquerade() + ", or have endpoints reach " + w.d.question.Source.String() + " by way of this host"}
	if w.addProblem(p) {
		w.addLine(routeStep, fmt.Sprintf("<- %s   (%s)", p.Text, p.Hint))
	}
	return true
}

// howToMasquerade says which setting ends that the client's address is kept.
func (w *way) howToMasquerade() string {
	switch m := w.d.route.Masquerade; {
	case w.d.use.Forward.Answers(): // endpoints answer others themselves
		return "take the client out of local_cidrs and local_interfaces"
	case m == policy.NonLocal:
		return "take the client out of local_cidrs and local_interfaces, or write masquerade = \"all\" in the service"
	case w.d.frontend.Key.Kind != policy.VIP && w.d.use.ExternalTrafficPolicy == source.Local:
		return "write external_traffic_policy = \"cluster\""
	}
	return "write masquerade = \"all\" in the service"
}

// unanswered returns the packet as it leaves for an endpoint that answers the client itself: as it
// came, or in one of a tunnel.
func (w *way) unanswered(p ruleset.Packet, e *Expected, t lookup) ruleset.Packet {
	p.Out, p.OutIndex, p.DstLocal = t.Interface, t.Index, t.Local
	f := w.d.route.Pool.Forward
	if f.Method != source.ForwardTunnel || t.Local {
		return p
	}
	p.Src, p.SrcLocal, p.Dst, p.DstPort = t.Source, true, e.Address.Addr(), f.Port
	switch {
	case f.Tunnel == source.GUE:
		p.Protocol = unix.IPPROTO_UDP
	case f.Tunnel == source.GRE:
		p.Protocol = unix.IPPROTO_GRE
	case w.d.family == policy.IPv6:
		p.Protocol = unix.IPPROTO_IPV6
	default:
		p.Protocol = unix.IPPROTO_IPIP
	}
	return p
}
