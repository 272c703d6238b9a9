package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A way is what a packet meets on this host: steps 5 and 6 of a Report.
type way struct {
	*Report
	d *decision
	f *facts
}

// follow writes both steps.
func (w *way) follow() {
	w.sysctls()
	p := w.early(ruleset.Packet{ // as it comes in
		Src: w.d.question.Source, Dst: w.d.question.Dest, DstPort: w.d.question.Port, Protocol: uint8(w.d.question.Protocol),
		In: w.d.sender.Interface, InIndex: w.f.in.Index, NoIn: w.d.sender.Host,
		SrcLocal: w.d.sender.Host, DstLocal: isHost(w.d.world.Node, w.d.question.Dest) || w.d.world.BindsAddresses && w.d.use != nil,
	})
	if w.d.outcome != Balanced {
		w.unread()
		return
	}
	w.reverse()
	for i := range w.Expected {
		if t, asked := w.f.targets[w.Expected[i].Address]; asked {
			w.target(p, i, t)
		}
	}
	w.back()
	for _, c := range w.f.flows { // connections that are there already
		w.addLine(hostStep, "connection tracking has %s -> %s, which %s answers%s", c.Src, c.Dst, c.Reply, map[bool]string{false: "; no answer yet"}[c.Replied])
	}
	w.unread()
}

// Priorities, <linux/netfilter_ipv4.h>: where connections begin to be tracked, and where
// rules of ours translate destinations.
const (
	priorityTrack = -200
	priorityDNAT  = -100
)

// early follows the packet through the rules of others up to where its destination is translated.
func (w *way) early(p ruleset.Packet) ruleset.Packet {
	hook := "prerouting"
	if w.d.sender.Host {
		hook = "output"
	}
	if err := w.f.forth.err; err != nil { // of what this host sends, before its destination is translated
		w.addLine(routeStep, "this host has NO ROUTE to %s: %v", w.d.question.Dest, err)
		w.addStop(routeStep, leaveOrder, "this host has no route to "+w.d.question.Dest.String(),
			"any route that covers the address will do, a default route too")
	}
	for _, b := range w.f.rules.Bases {
		if b.Hook != hook || b.Type == "nat" && !w.before(b) || b.Type != "nat" && b.Priority >= priorityDNAT {
			continue
		}
		var hits []ruleset.Hit
		own := map[string]ruleset.Verdict{}
		if b.Type == "nat" && !w.d.balancedOutside() {
			own[layout.Services] = ruleset.Verdict{Kind: ruleset.Own}
		}
		hits, p = b.Walk(p, own)
		for _, h := range hits {
			sure := h.Sure && (b.Type != "nat" || b.Priority < priorityDNAT || b.Created > w.f.rules.Own || w.d.world.Accepts)
			w.hit(h, sure, earlyOrder, nil)
		}
	}
	return p
}

// before reports whether a chain that translates may come before ours. Of two with one
// priority the one that was made last comes first.
func (w *way) before(b *ruleset.Base) bool {
	switch {
	case w.d.balancedOutside(), b.Priority < priorityDNAT:
		return true
	case b.Priority > priorityDNAT:
		return false
	}
	return w.d.world.Accepts || w.f.rules.Own == 0 || b.Created == 0 || b.Created > w.f.rules.Own
}

// hit notes what a rule of others does with the packet.
func (w *way) hit(h ruleset.Hit, sure bool, order int, to []netip.AddrPort) {
	if h.Verdict.Kind == ruleset.NoTrack && h.Base.Priority >= priorityTrack {
		return
	}
	what := map[ruleset.Kind]string{
		ruleset.Drop: "is dropped", ruleset.Reject: "is rejected", ruleset.Translate: "is translated before our rules, to " + h.Verdict.To,
		ruleset.Rewrite:    "is rewritten, so that it is not what was asked for,",
		ruleset.Unfollowed: "is met by more rules than are followed, and stopped",
		ruleset.NoTrack:    "is not tracked, so nothing translates it", ruleset.Queue: "is handed to a program, which decides",
	}[h.Verdict.Kind]
	if h.Verdict.Kind == ruleset.Translate && h.Verdict.To == "" {
		what = "is translated before our rules"
	}
	rule := "its policy"
	if h.Verdict.Kind == ruleset.Unfollowed {
		rule = "one of its rules"
	} else if h.Rule != "" {
		rule = "rule \"" + h.Rule + "\""
	}
	where := h.Base.Origin
	if len(h.Path) > 1 {
		where += " > " + strings.Join(h.Path[1:], " > ")
	}
	if !sure {
		what = strings.Replace(what, "is ", "may be ", 1)
	}
	if h.Verdict.Kind == ruleset.Queue {
		sure = false
	}
	w.addProblem(Problem{Step: hostStep, Text: fmt.Sprintf("%s by %s, %s", what, where, rule), Sure: sure, order: order, Endpoint: to,
		Hint: "the rule is of another program: change it there"})
}

// sysctls are those lines of step 6 that no problem follows from by itself.
func (w *way) sysctls() {
	for _, name := range []string{
		forwarding(w.d.family), "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/" + w.d.sender.Interface + "/rp_filter", "net/ipv4/conf/all/route_localnet",
		"net/ipv4/vs/conntrack", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce",
	} {
		if v, known := w.f.sysctls[name]; known {
			w.addLine(hostStep, "%s = %s", dotted(name), v)
		}
	}
	if w.d.outcome != Balanced {
		return
	}
	if w.f.sysctls["net/ipv4/conf/all/route_localnet"] == "0" && w.d.question.Dest.IsLoopback() {
		w.addStop(hostStep, reverseOrder, "route_localnet is off", "svcproxy init sets it")
	}
	if v, known := w.f.sysctls["net/ipv4/vs/conntrack"]; known && v == "0" && !w.d.answers() {
		w.addStop(hostStep, forwardOrder, "net.ipv4.vs.conntrack is 0: IPVS does not masquerade", "svcproxy init sets it")
	}
}

// dotted is a setting as sysctl(8) names it.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }

// reverse is what rp_filter does.
func (w *way) reverse() {
	if w.d.sender.Host || w.d.family != policy.IPv4 {
		return
	}
	mode := max(w.f.sysctls["net/ipv4/conf/all/rp_filter"], w.f.sysctls["net/ipv4/conf/"+w.d.sender.Interface+"/rp_filter"])
	asymmetric := w.f.back.err != nil || w.f.back.Interface != w.d.sender.Interface
	if w.d.question.In != "" && (mode == "1" && asymmetric || mode == "2" && w.f.back.err != nil) {
		text := fmt.Sprintf("rp_filter of %s drops it: the way back to %s goes by %s", w.d.question.In, w.d.question.Source, w.f.back.Interface)
		if w.f.back.err != nil {
			text = fmt.Sprintf("rp_filter of %s drops it: there is no way back to %s", w.d.question.In, w.d.question.Source)
		}
		w.addStop(hostStep, reverseOrder, text,
			"set net.ipv4.conf."+w.d.question.In+".rp_filter and that of all to 2, or make the routes symmetric")
		return
	}
	if len(w.f.strict) > 0 && w.f.back.err == nil {
		w.addProblem(Problem{Step: hostStep, Sure: false, order: reverseOrder, Hint: "ask with --interface",
			Text: fmt.Sprintf("it comes in by %s, where rp_filter drops what the way back, %s, does not lead to", some(w.f.strict), w.f.back.Interface)})
	}
}

// target is the way of the packet to one endpoint.
func (w *way) target(p ruleset.Packet, i int, t Route) {
	e := &w.Expected[i]
	if !t.Local && !w.d.sender.Host && !w.d.answers() {
		e.Blocked = w.forwarding()
	}
	if t.err != nil {
		w.addLine(routeStep, "%s: NO ROUTE: %v", e.Address, t.err)
		w.addStop(routeStep, routeOrder, "no route to the endpoint", "see ip route get "+e.Address.Addr().String(), e.Address)
		e.Blocked = true
		return
	}
	w.addLine(routeStep, "%s %s", e.Address, t.text())
	e.Source = w.d.question.Source
	if e.Masquerade {
		e.Source = t.Source
	}
	e.Blocked = w.behindRouter(e, t) || e.Blocked
	e.Blocked = w.answersDirectly(e, t) || e.Blocked
	e.Blocked = w.late(p, e, t) || e.Blocked
}

// text says where it leads.
func (t Route) text() string {
	switch {
	case t.Local:
		return "is this host itself"
	case t.Via.IsValid():
		return fmt.Sprintf("by %s, via %s", t.Interface, t.Via)
	}
	return "by " + t.Interface
}

// forwarding reports whether this host does not forward.
func (w *way) forwarding() bool {
	all, known := w.f.sysctls[forwarding(w.d.family)]
	one := interfaceForwarding(w.d.family, w.d.sender.Interface)
	switch {
	case known && all == "0":
		w.addStop(hostStep, forwardOrder, "forwarding is off, "+dotted(forwarding(w.d.family))+" = 0", "svcproxy init, or set it")
	case w.f.sysctls[one] == "0" && w.d.family == policy.IPv4:
		w.addStop(hostStep, forwardOrder, "forwarding is off, "+dotted(one)+" = 0", "set it to 1")
	default:
		return false
	}
	return true
}

// late follows the packet through the rules of others once it is addressed to an endpoint,
// and reports whether it certainly does not get there.
func (w *way) late(p ruleset.Packet, e *Expected, t Route) bool {
	own, stops := map[string]ruleset.Verdict{}, false
	if w.d.world.Accepts { // what our chains in tables of iptables do with a packet that was balanced
		own = map[string]ruleset.Verdict{layout.Forward: {Kind: ruleset.Accept}, layout.Filter: {}, layout.Postrouting: {}}
	}
	for _, b := range w.f.rules.Bases {
		q, meets := w.at(b, p, e, t)
		if !meets {
			continue
		}
		hits, after := b.Walk(q, own)
		p.AnyMark = p.AnyMark || after.AnyMark
		for _, h := range hits {
			if h.Verdict.Kind == ruleset.Translate || h.Verdict.Kind == ruleset.NoTrack {
				continue
			}
			w.hit(h, h.Sure, filterOrder, []netip.AddrPort{e.Address})
			stops = stops || h.Sure
		}
	}
	return stops
}

// at returns the packet as a chain meets it after its destination was translated, and
// whether it does.
func (w *way) at(b *ruleset.Base, p ruleset.Packet, e *Expected, t Route) (ruleset.Packet, bool) {
	translated := p
	translated.Dst, translated.DstPort, translated.DNAT = e.Address.Addr(), e.Address.Port(), true
	translated.Out, translated.OutIndex, translated.DstLocal = t.Interface, t.Index, t.Local
	if e.Masquerade {
		translated.Mark |= w.d.host.Mark()
	}
	if w.d.answers() {
		translated = w.unanswered(p, e, t)
	}
	if b.Type == "nat" {
		return p, false
	}
	switch b.Hook {
	case "prerouting":
		translated.Out, translated.OutIndex = "", 0
		return translated, !w.d.sender.Host && !w.d.balancedOutside() && b.Priority >= priorityDNAT
	case "input":
		if w.d.balancedOutside() {
			return p, !w.d.sender.Host
		}
		translated.Out, translated.OutIndex = "", 0
		return translated, t.Local && !w.d.sender.Host
	case "forward":
		return translated, !t.Local && !w.d.sender.Host && !w.d.balancedOutside()
	case "output":
		return translated, w.d.sender.Host && b.Priority >= priorityDNAT || w.d.balancedOutside() && !w.d.sender.Host
	}
	return translated, !t.Local
}

// back is the way back to the client.
func (w *way) back() {
	if w.d.sender.Host {
		return
	}
	if w.d.answers() {
		w.addLine(routeStep, "endpoints answer the client by routes of their own, which must not lead through this host")
		return
	}
	if w.f.back.err != nil {
		w.addLine(routeStep, "back to %s: NO ROUTE: %v", w.d.question.Source, w.f.back.err)
		w.addStop(routeStep, backOrder, "no way back to "+w.d.question.Source.String(), "see ip route get "+w.d.question.Source.String())
		return
	}
	w.addLine(routeStep, "back to the client %s", w.f.back.text())
	for _, e := range w.Expected {
		if !e.Masquerade && !w.f.targets[e.Address].Local {
			w.addLine(routeStep, "endpoints see the client's address: their answers must come back by way of this host")
			return
		}
	}
}

// unread tells of what is not known.
func (w *way) unread() {
	for _, u := range w.f.notKnown {
		w.addLine(hostStep, "not known: %s", u)
	}
	for _, p := range w.f.doubts {
		w.addProblem(p)
		if p.Step != hostStep {
			w.addLine(p.Step, "<- %s", p.Text)
		}
	}
	for _, p := range w.Problems {
		if p.Step == hostStep {
			text := p.Text
			if p.Hint != "" {
				text += "   (" + p.Hint + ")"
			}
			w.addLine(hostStep, "<- %s", text)
		}
	}
}

// behindRouter reports whether a packet that is sent as it is would get to a router, and not to
// its endpoint.
func (w *way) behindRouter(e *Expected, t Route) bool {
	if !w.d.answers() || w.d.route.Pool.Forward.Method != source.ForwardDirect || !t.Via.IsValid() {
		return false
	}
	text := fmt.Sprintf("the endpoint is behind the router %s, which sends packets to %s back", t.Via, w.d.question.Dest)
	w.addStop(routeStep, routeOrder, text, "forward = \"tunnel\" gets through routers", e.Address)
	return true
}

// answersDirectly reports whether an endpoint that sees the client's address answers it on their common
// link. Nothing translates the answer back then, and the client, which asked another address, drops it.
func (w *way) answersDirectly(e *Expected, t Route) bool {
	if e.Masquerade || w.d.answers() || t.Local || t.Via.IsValid() || t.Interface != w.f.back.Interface {
		return false
	}
	subnet := shared(w.f.link, w.d.question.Source, e.Address.Addr())
	if !subnet.IsValid() {
		return false
	}
	text := fmt.Sprintf("the endpoint answers past this host: the client keeps its address, and both are in %s on %s", subnet, t.Interface)
	hint := w.howToMasquerade() + ", or have endpoints reach " + w.d.question.Source.String() + " by way of this host"
	if w.addStop(routeStep, backOrder, text, hint, e.Address) {
		w.addLine(routeStep, "<- %s   (%s)", text, hint)
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
func (w *way) unanswered(p ruleset.Packet, e *Expected, t Route) ruleset.Packet {
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
