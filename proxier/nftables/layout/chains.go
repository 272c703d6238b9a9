package layout

import (
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/source"
)

// Priorities of the built-in hooks, <linux/netfilter_ipv4.h>, and one of ours: what is refused is
// refused before the host's own filter, which has 0, but after its destination was translated.
const (
	priorityDNAT   = -100
	prioritySNAT   = 100
	priorityFilter = -10
)

// chains returns all chains, each after those that it jumps to.
func (l *chainRenderer) chains() []*Chain {
	var list []*Chain
	list = append(list, l.hostChains()...)
	for _, class := range []lookupClass{classLocalAddr, classLocalNodePort, classAddr, classNodePort} {
		placed := class == classNodePort && l.has(Set{kind: frontends, class: classPlaced})
		if placed || l.has(Set{kind: frontends, class: class}) {
			list = append(list, l.classChains(class)...)
		}
	}
	return append(list, l.baseChains()...)
}

// hostChains returns the chains that depend on this host only.
func (l *chainRenderer) hostChains() []*Chain {
	m := newChain(markNonLocalChain, "masquerade every source that is not local")
	for _, c := range l.localSources() {
		m.rule(c, returnVerdict)
	}
	m.rule(setMark(l.host.Mark()))

	r := newChain(refusedChain, "")
	r.rule(tcpOnly, tcpReset)
	r.rule(l.unreachable())
	return []*Chain{m, r, l.refusals()}
}

// baseChains returns the chains with a hook.
func (l *chainRenderer) baseChains() []*Chain {
	pre := newBaseChain("prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT)
	out := newBaseChain("output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT)
	for _, c := range []*Chain{pre, out} {
		for _, class := range l.classesWith(frontends) {
			match, lead := l.addressedTo(class, frontends), jump(class.chainName())
			c.rule(match, lead)
			c.commented("once more, if a slot was just moved", match, lead)
		}
	}
	list := []*Chain{pre, out, l.postrouting()}
	for _, f := range []struct {
		name string
		hook uint32
	}{
		{"filter-input", unix.NF_INET_LOCAL_IN},
		{"filter-forward", unix.NF_INET_FORWARD},
		{"filter-output", unix.NF_INET_LOCAL_OUT},
	} {
		c := newBaseChain(f.name, "filter", f.hook, priorityFilter)
		c.rule(isNew, jump(refusalsChain))
		if f.hook == unix.NF_INET_FORWARD {
			l.flowRules(c)
			l.strays(c)
		}
		list = append(list, c)
	}
	if takesOver(l.counts) {
		list = append(list, l.answers())
	}
	return list
}

// flowRules appends the rules that put connections to our endpoints into the flow table, once
// they are established: until then connection tracking must see their packets.
func (l *chainRenderer) flowRules(c *Chain) {
	if l.flowtable == nil {
		return
	}
	for _, class := range l.classesWith(frontends) {
		var toNode []expr.Any
		if class.isNodePort() {
			toNode = inSet(l.originalDst(0), Set{kind: nodeAddrs})
		}
		c.rule(hasDNAT, assured, toNode, inSet(l.connectionTo(class), Set{kind: frontends, class: class}), flowAdd(l.flowtable))
	}
}

// FillsFlows returns a chain that puts connections into a flow table, to try whether the kernel takes it.
func (d *Dialect) FillsFlows(f *nft.Flowtable) *Chain {
	c := newBaseChain("filter-forward", "filter", unix.NF_INET_FORWARD, priorityFilter)
	c.rule(d.connectionTo(classAddr).exprs, flowAdd(f))
	return c
}

// strays appends the rules that drop forwarded packets of no connection to addresses that routers
// send to this host: a router would send them back, until their TTL ends. New connections are
// refused by then.
func (l *chainRenderer) strays(c *Chain) {
	if s := (Set{kind: vips}); l.has(s) {
		c.rule(isStray, inSet(l.destination(0), s), dropVerdict)
	}
	for _, match := range l.toServiceCIDRs() {
		c.rule(isStray, match, dropVerdict)
	}
}

// toServiceCIDRs returns what matches packets to each of service_cidrs, apart from exempt addresses.
func (l *chainRenderer) toServiceCIDRs() (list [][]expr.Any) {
	for _, p := range l.host.ServiceCIDRs {
		match := l.matchPrefix(l.destination(0), p)
		if s := (Set{kind: exempt}); l.has(s) {
			match = append(match, notInSet(l.destination(0), s)...)
		}
		list = append(list, match)
	}
	return list
}

// classesWith returns the classes in which packets can reach a frontend in the set of a kind.
func (l *chainRenderer) classesWith(k kind) (list []lookupClass) {
	for _, class := range []lookupClass{classAddr, classNodePort, classPlaced} {
		reachable := !class.isNodePort() || l.has(Set{kind: nodeAddrs})
		if l.has(Set{kind: k, class: class}) && reachable {
			list = append(list, class)
		}
	}
	return list
}

// addressedTo matches packets that are addressed to a frontend in the set of a kind.
func (l *chainRenderer) addressedTo(class lookupClass, k kind) []expr.Any {
	match := inSet(l.frontend(class), Set{kind: k, class: class})
	if class.isNodePort() {
		match = append(inSet(l.destination(0), Set{kind: nodeAddrs}), match...)
	}
	return match
}

// classChains returns the chains of a class: the first, and one for each number of slots.
func (l *chainRenderer) classChains(class lookupClass) []*Chain {
	first := newChain(class.chainName(), "packets to "+Set{kind: frontends, class: class}.Name())
	list := []*Chain{}
	for _, s := range l.ordered(bySize, class) {
		if s.hash != source.NotHashed {
			list = append(list, l.pickHashed(s))
		} else {
			list = append(list, l.pick(s))
		}
	}
	list = append(list, l.affinityChains(class)...)
	if class.isLocal() {
		return append(list, l.fromLocal(class)...)
	}
	if l.has(Set{kind: restricted, class: class}) {
		admit := l.admit(class)
		list = append(list, admit)
		first.rule(inSet(l.frontend(class), Set{kind: restricted, class: class}), jump(admit.Name))
	}
	if split := (Set{kind: frontends, class: class.local()}); l.has(split) {
		first.rule(inSet(l.frontend(class), split), jump(class.local().chainName()))
	}
	l.mark(first, class, masquerade, setMark(l.host.Mark()))
	l.mark(first, class, masqueradeNonLocal, jump(markNonLocalChain))
	l.mark(first, class, masqueradeHost, fromHost, setMark(l.host.Mark()))
	l.dispatch(first, class)
	return append(list, first)
}

// admit returns the chain that drops packets to restricted frontends from sources that may not use them: each is looked
// up by prefixes of every length in use. A packet on its way while one range takes the place of another may find neither
// at first, and one whose frontend is not restricted any more none at all.
func (l *chainRenderer) admit(class lookupClass) *Chain {
	c := newChain(class.prefix()+"admit", "sources that may use restricted frontends return")
	front := l.frontend(class)
	for _, comment := range []string{"", "once more, if a range was just replaced"} {
		for _, s := range l.ranges(class) {
			c.commented(comment, inSet(join(front, l.network(int(s.bits), front.next)), s), returnVerdict)
		}
	}
	c.rule(inSet(front, Set{kind: restricted, class: class}), dropVerdict)
	return c
}

// ranges returns the sets of source ranges of a class, those of short prefixes first, which have more addresses.
func (l *chainRenderer) ranges(class lookupClass) (list []Set) {
	for bits := range l.Fam.Bits() + 1 {
		if s := (Set{kind: sourceRanges, class: class, bits: uint8(bits)}); l.has(s) {
			list = append(list, s)
		}
	}
	return list
}

// fromLocal returns the chains for frontends that treat host processes and local
// sources differently. All others go on as if they had not been here.
func (l *chainRenderer) fromLocal(class lookupClass) []*Chain {
	first := newChain(class.chainName(), "host processes and local sources are served differently")
	host := newChain(class.prefix()+"host", "host processes")
	near := newChain(class.prefix()+"sources", "local sources")
	pick := newChain(class.prefix()+"pick", "whom host processes and local sources reach")
	first.rule(fromHost, goTo(host.Name))
	for _, c := range l.localSources() {
		first.rule(c, goTo(near.Name))
	}
	bit := setMark(l.host.Mark())
	l.mark(host, class, masquerade, bit)
	l.mark(host, class, masqueradeNonLocal, jump(markNonLocalChain))
	l.mark(host, class, masqueradeHost, bit)
	host.rule(goTo(pick.Name))
	l.mark(near, class, masquerade, bit)
	near.rule(goTo(pick.Name))
	l.dispatch(pick, class)
	pick.rule(acceptVerdict) // no endpoint: refused or dropped later, never balanced as for other sources
	return []*Chain{pick, near, host, first}
}

// pick returns the chain that picks one of the slots of the set's frontends.
func (l *chainRenderer) pick(s Set) *Chain {
	c := newChain(s.pickChain(), fmt.Sprintf("one of %d slots", s.size))
	for _, below := range moduli(s.size) {
		front := l.frontend(s.class)
		c.rule(mapLookup(join(front, numgen(below, front.next)), 0, s.slotMap(), 8), l.dnat(8))
	}
	return c
}

// postrouting masquerades marked packets that were balanced, and those of an endpoint to itself.
// A mark that has our bit by chance, as of a tunnel's packet, means nothing, and stays.
func (l *chainRenderer) postrouting() *Chain {
	c := newBaseChain("postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT)
	if s := (Set{kind: hairpins}); l.has(s) {
		front := l.frontend(classAddr)
		c.rule(hasDNAT, inSet(join(front, l.source(front.next)), s), masqueraded)
	}
	bit := l.host.Mark()
	c.rule(unmarked(bit), returnVerdict)
	c.rule(noDNAT, returnVerdict)
	c.rule(clearMark(bit)) // a tunnel would copy the mark to the outer packet
	c.rule(masqueraded)
	return c
}

// refusals returns the chain that refuses new connections. Those that were
// balanced are addressed to their endpoint by now, and pass.
func (l *chainRenderer) refusals() *Chain {
	c := newChain(refusalsChain, "new connections that were not balanced")
	c.rule(hasDNAT, returnVerdict)
	for _, class := range l.classesWith(noEndpointsReject) {
		c.rule(l.addressedTo(class, noEndpointsReject), goTo(refusedChain))
	}
	for _, class := range l.classesWith(noEndpointsDrop) {
		c.rule(l.addressedTo(class, noEndpointsDrop), dropVerdict)
	}
	for _, class := range l.classesWith(frontends) {
		// Its slot was moved twice. Dropping it removes the connection; the client sends it again.
		c.rule(unconfirmed, l.addressedTo(class, frontends), dropVerdict)
	}
	early := len(c.Rules) // the following would refuse packets to frontends that are not loaded yet
	if s := (Set{kind: vips}); l.has(s) {
		c.rule(inSet(l.destination(0), s), goTo(refusedChain))
	}
	for _, match := range l.toServiceCIDRs() {
		c.rule(match, goTo(refusedChain))
	}
	c.Deferred = len(c.Rules) - early
	return c
}
