package explain

import (
	"fmt"
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ruleset"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The order in which a packet meets what may stand in its way.
const (
	leaveOrder = iota + 1
	earlyOrder
	ownOrder
	reverseOrder
	forwardOrder
	routeOrder
	filterOrder
	backOrder
	unreadOrder
)

// way is steps 5 and 6.
func (r *Report) way(d *decision, f *facts) {
	r.sysctls(d, f)
	p := d.packet(f)
	p = r.early(d, f, p)
	if d.outcome != Balanced {
		r.unread(f)
		return
	}
	r.reverse(d, f)
	for i := range r.Expected {
		if t, asked := f.targets[r.Expected[i].Address]; asked {
			r.target(d, f, p, i, t)
		}
	}
	r.back(d, f)
	r.flows(f)
	r.unread(f)
}

// packet is the packet as it comes in.
func (d *decision) packet(f *facts) ruleset.Packet {
	return ruleset.Packet{
		Src: d.question.Source, Dst: d.question.Dest, DstPort: d.question.Port, Protocol: uint8(d.question.Protocol),
		In: d.sender.Interface, InIndex: f.in.Index, NoIn: d.sender.Host,
		SrcLocal: d.sender.Host, DstLocal: isHost(d.world.Node, d.question.Dest) || d.world.BindsAddresses && d.use != nil,
	}
}

// balancedOutside reports whether no rule balances: rules do for packets of local sources that are treated
// differently, in all modes.
func (d *decision) balancedOutside() bool {
	return d.world.Balancer != "" && !(d.frontend != nil && d.frontend.Split() && d.route == d.frontend.Local)
}

// Priorities, <linux/netfilter_ipv4.h>: where connections begin to be tracked, and where
// rules of ours translate destinations.
const (
	priorityTrack = -200
	priorityDNAT  = -100
)

// early follows the packet through the rules of others up to where its destination is translated.
func (r *Report) early(d *decision, f *facts, p ruleset.Packet) ruleset.Packet {
	hook := "prerouting"
	if d.sender.Host {
		hook = "output"
		r.leave(d, f)
	}
	for _, b := range f.rules.Bases {
		if b.Hook != hook || b.Type == "nat" && !d.before(b, f) || b.Type != "nat" && b.Priority >= priorityDNAT {
			continue
		}
		var hits []ruleset.Hit
		own := map[string]ruleset.Verdict{}
		if b.Type == "nat" && !d.balancedOutside() {
			own[layout.Services] = ruleset.Verdict{Kind: ruleset.Own}
		}
		hits, p = b.Walk(p, own)
		for _, h := range hits {
			sure := h.Sure && (b.Type != "nat" || b.Priority < priorityDNAT || b.Created > f.rules.Own || d.world.Accepts)
			r.hit(h, sure, earlyOrder, nil)
		}
	}
	return p
}

// before reports whether a chain that translates may come before ours. Of two with one
// priority the one that was made last comes first.
func (d *decision) before(b *ruleset.Base, f *facts) bool {
	switch {
	case d.balancedOutside(), b.Priority < priorityDNAT:
		return true
	case b.Priority > priorityDNAT:
		return false
	}
	return d.world.Accepts || f.rules.Own == 0 || b.Created == 0 || b.Created > f.rules.Own
}

// hit notes what a rule of others does with the packet.
func (r *Report) hit(h ruleset.Hit, sure bool, order int, to []netip.AddrPort) {
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
	r.addProblem(Problem{Step: hostStep, Text: fmt.Sprintf("%s by %s, %s", what, where, rule), Sure: sure, order: order, Endpoint: to,
		Hint: "the rule is of another program: change it there"})
}

// leave is the route of what this host sends, before its destination is translated.
func (r *Report) leave(d *decision, f *facts) {
	if f.forth.err == nil {
		return
	}
	r.say(routeStep, fmt.Sprintf("this host has NO ROUTE to %s: %v", d.question.Dest, f.forth.err))
	r.addProblem(Problem{Step: routeStep, Text: "this host has no route to " + d.question.Dest.String(), Sure: true, order: leaveOrder,
		Hint: "any route that covers the address will do, a default route too"})
}

// sysctls are those lines of step 6 that no problem follows from by itself.
func (r *Report) sysctls(d *decision, f *facts) {
	for _, name := range []string{
		forwarding(d.family), "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/" + d.sender.Interface + "/rp_filter", "net/ipv4/conf/all/route_localnet",
		"net/ipv4/vs/conntrack", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce",
	} {
		if v, known := f.sysctls[name]; known {
			r.say(hostStep, dotted(name)+" = "+v)
		}
	}
	if d.outcome != Balanced {
		return
	}
	if f.sysctls["net/ipv4/conf/all/route_localnet"] == "0" && d.question.Dest.IsLoopback() {
		r.addProblem(Problem{Step: hostStep, Text: "route_localnet is off", Hint: "svcproxy init sets it", Sure: true, order: reverseOrder})
	}
	if v, known := f.sysctls["net/ipv4/vs/conntrack"]; known && v == "0" && !d.answers() {
		r.addProblem(Problem{Step: hostStep, Text: "net.ipv4.vs.conntrack is 0: IPVS does not masquerade", Hint: "svcproxy init sets it", Sure: true, order: forwardOrder})
	}
}

// dotted is a setting as sysctl(8) names it.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }

// reverse is what rp_filter does.
func (r *Report) reverse(d *decision, f *facts) {
	if d.sender.Host || d.family != policy.IPv4 {
		return
	}
	mode := strictest(f.sysctls["net/ipv4/conf/all/rp_filter"], f.sysctls["net/ipv4/conf/"+d.sender.Interface+"/rp_filter"])
	asymmetric := f.back.err != nil || f.back.Interface != d.sender.Interface
	if d.question.In != "" && (mode == "1" && asymmetric || mode == "2" && f.back.err != nil) {
		text := fmt.Sprintf("rp_filter of %s drops it: the way back to %s goes by %s", d.question.In, d.question.Source, f.back.Interface)
		if f.back.err != nil {
			text = fmt.Sprintf("rp_filter of %s drops it: there is no way back to %s", d.question.In, d.question.Source)
		}
		r.addProblem(Problem{Step: hostStep, Text: text, Sure: true, order: reverseOrder,
			Hint: "set net.ipv4.conf." + d.question.In + ".rp_filter and that of all to 2, or make the routes symmetric"})
		return
	}
	if len(f.strict) > 0 && f.back.err == nil {
		r.addProblem(Problem{Step: hostStep, Sure: false, order: reverseOrder, Hint: "ask with --interface",
			Text: fmt.Sprintf("it comes in by %s, where rp_filter drops what the way back, %s, does not lead to", some(f.strict), f.back.Interface)})
	}
}

// target is the way of the packet to one endpoint.
func (r *Report) target(d *decision, f *facts, p ruleset.Packet, i int, t lookup) {
	e := &r.Expected[i]
	if !t.Local && !d.sender.Host && !d.answers() {
		e.Blocked = r.forwarding(d, f)
	}
	if t.err != nil {
		r.say(routeStep, fmt.Sprintf("%s: NO ROUTE: %v", e.Address, t.err))
		r.addProblem(Problem{Step: routeStep, Text: "no route to the endpoint", Sure: true, order: routeOrder, Endpoint: []netip.AddrPort{e.Address},
			Hint: "see ip route get " + e.Address.Addr().String()})
		e.Blocked = true
		return
	}
	r.say(routeStep, e.Address.String()+" "+t.text())
	e.Source = d.question.Source
	if e.Masquerade {
		e.Source = t.Source
	}
	e.Blocked = r.behindRouter(d, e, t) || e.Blocked
	e.Blocked = r.answersDirectly(d, f, e, t) || e.Blocked
	e.Blocked = r.late(d, f, p, e, t) || e.Blocked
}

// text says where it leads.
func (t lookup) text() string {
	switch {
	case t.Local:
		return "is this host itself"
	case t.Via.IsValid():
		return fmt.Sprintf("by %s, via %s", t.Interface, t.Via)
	}
	return "by " + t.Interface
}

// forwarding reports whether this host does not forward.
func (r *Report) forwarding(d *decision, f *facts) bool {
	all, known := f.sysctls[forwarding(d.family)]
	one := interfaceForwarding(d.family, d.sender.Interface)
	switch {
	case known && all == "0":
		r.addProblem(Problem{Step: hostStep, Text: "forwarding is off, " + dotted(forwarding(d.family)) + " = 0", Sure: true, order: forwardOrder,
			Hint: "svcproxy init, or set it"})
	case f.sysctls[one] == "0" && d.family == policy.IPv4:
		r.addProblem(Problem{Step: hostStep, Text: "forwarding is off, " + dotted(one) + " = 0", Sure: true, order: forwardOrder, Hint: "set it to 1"})
	default:
		return false
	}
	return true
}

// late follows the packet through the rules of others once it is addressed to an endpoint,
// and reports whether it certainly does not get there.
func (r *Report) late(d *decision, f *facts, p ruleset.Packet, e *Expected, t lookup) bool {
	stops := false
	for _, b := range f.rules.Bases {
		q, meets := d.at(b, p, e, t)
		if !meets {
			continue
		}
		hits, after := b.Walk(q, d.ownFilter())
		p.AnyMark = p.AnyMark || after.AnyMark
		for _, h := range hits {
			if h.Verdict.Kind == ruleset.Translate || h.Verdict.Kind == ruleset.NoTrack {
				continue
			}
			r.hit(h, h.Sure, filterOrder, []netip.AddrPort{e.Address})
			stops = stops || h.Sure
		}
	}
	return stops
}

// ownFilter is what our chains in tables of iptables do with a packet that was balanced.
func (d *decision) ownFilter() map[string]ruleset.Verdict {
	if !d.world.Accepts {
		return nil
	}
	return map[string]ruleset.Verdict{layout.Forward: {Kind: ruleset.Accept}, layout.Filter: {}, layout.Postrouting: {}}
}

// at returns the packet as a chain meets it after its destination was translated, and
// whether it does.
func (d *decision) at(b *ruleset.Base, p ruleset.Packet, e *Expected, t lookup) (ruleset.Packet, bool) {
	translated := p
	translated.Dst, translated.DstPort, translated.DNAT = e.Address.Addr(), e.Address.Port(), true
	translated.Out, translated.OutIndex, translated.DstLocal = t.Interface, t.Index, t.Local
	if e.Masquerade {
		translated.Mark |= d.host.Mark()
	}
	if d.answers() {
		translated = d.unanswered(p, e, t)
	}
	if b.Type == "nat" {
		return p, false
	}
	switch b.Hook {
	case "prerouting":
		translated.Out, translated.OutIndex = "", 0
		return translated, !d.sender.Host && !d.balancedOutside() && b.Priority >= priorityDNAT
	case "input":
		if d.balancedOutside() {
			return p, !d.sender.Host
		}
		translated.Out, translated.OutIndex = "", 0
		return translated, t.Local && !d.sender.Host
	case "forward":
		return translated, !t.Local && !d.sender.Host && !d.balancedOutside()
	case "output":
		return translated, d.sender.Host && b.Priority >= priorityDNAT || d.balancedOutside() && !d.sender.Host
	}
	return translated, !t.Local
}

// back is the way back to the client.
func (r *Report) back(d *decision, f *facts) {
	if d.sender.Host {
		return
	}
	if d.answers() {
		r.say(routeStep, "endpoints answer the client by routes of their own, which must not lead through this host")
		return
	}
	if f.back.err != nil {
		r.say(routeStep, fmt.Sprintf("back to %s: NO ROUTE: %v", d.question.Source, f.back.err))
		r.addProblem(Problem{Step: routeStep, Text: "no way back to " + d.question.Source.String(), Sure: true, order: backOrder,
			Hint: "see ip route get " + d.question.Source.String()})
		return
	}
	r.say(routeStep, "back to the client "+f.back.text())
	for _, e := range r.Expected {
		if !e.Masquerade && !f.targets[e.Address].Local {
			r.say(routeStep, "endpoints see the client's address: their answers must come back by way of this host")
			return
		}
	}
}

// flows tells of connections that are there already.
func (r *Report) flows(f *facts) {
	for _, c := range f.flows {
		r.say(hostStep, fmt.Sprintf("connection tracking has %s -> %s, which %s answers%s", c.Src, c.Dst, c.Reply, map[bool]string{false: "; no answer yet"}[c.Replied]))
	}
}

// unread tells of what is not known.
func (r *Report) unread(f *facts) {
	for _, u := range f.notKnown {
		r.say(hostStep, "not known: "+u)
	}
	for _, p := range f.doubts {
		r.addProblem(p)
		if p.Step != hostStep {
			r.say(p.Step, "<- "+p.Text)
		}
	}
	for _, p := range r.Problems {
		if p.Step == hostStep {
			text := p.Text
			if p.Hint != "" {
				text += "   (" + p.Hint + ")"
			}
			r.say(hostStep, "<- "+text)
		}
	}
}
