package nftables

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// Priorities of the built-in hooks, <linux/netfilter_ipv4.h>. What is refused is
// refused before the host's own filter, but after its destination was translated.
const (
	priorityDNAT   = -100
	prioritySNAT   = 100
	priorityFilter = -10
)

// A layout is what the chains depend on: this host, and which sets there are.
// How many services there are shows in the number of elements only.
type layout struct {
	*dialect
	host   *proxier.Host
	counts map[set]int // elements of each set; a set without any is not there
}

func (l *layout) has(s set) bool { return l.counts[s] > 0 }

// chains returns all chains, in an order in which nothing depends on what comes later.
func (l *layout) chains() []*chain {
	var list []*chain
	list = append(list, l.hostChains()...)
	for _, r := range []lookupClass{classLocalAddr, classLocalNodePort, classAddr, classNodePort} {
		if l.has(set{kind: frontends, class: r}) {
			list = append(list, l.classChains(r)...)
		}
	}
	return append(list, l.baseChains()...)
}

func newChain(name, comment string) *chain {
	return &chain{Chain: nft.Chain{Name: name, Comment: comment}}
}

func newBaseChain(name, typ string, hook uint32, priority int32) *chain {
	return &chain{Chain: nft.Chain{Name: name, Hook: &nft.Hook{Type: typ, Number: hook, Priority: priority, Policy: nft.Accept}}}
}

// The chains that others lead to, whatever services there are.
const (
	markNonLocalChain = "mark-non-local"
	refusalsChain     = "refusals"
	refusedChain      = "refused"
)

// hostChains returns the chains that depend on this host only.
func (l *layout) hostChains() []*chain {
	m := newChain(markNonLocalChain, "masquerade every source that is not local")
	for _, c := range l.localSources() {
		m.rule(c, returnVerdict)
	}
	m.rule(setMark(l.host.Mark()))

	r := newChain(refusedChain, "")
	r.rule(tcpOnly, tcpReset)
	r.rule(l.unreachable())
	return []*chain{m, r, l.refusals()}
}

// localSources returns what matches each kind of local source.
func (l *layout) localSources() (list []stmt) {
	for _, p := range l.host.LocalCIDRs {
		list = append(list, l.fromPrefix(p))
	}
	for _, name := range l.host.LocalInterfaces {
		list = append(list, fromInterface(name))
	}
	return list
}

// base returns the chains by which packets come.
func (l *layout) baseChains() []*chain {
	pre := newBaseChain("prerouting", "nat", unix.NF_INET_PRE_ROUTING, priorityDNAT)
	out := newBaseChain("output", "nat", unix.NF_INET_LOCAL_OUT, priorityDNAT)
	for _, c := range []*chain{pre, out} {
		for _, r := range l.classesWith(frontends) {
			lead := append(l.addressedTo(r, frontends), jump(r.chain()))
			c.rule(lead...)
			c.rules = append(c.rules, rule{stmts: lead, comment: "once more, if a slot was just moved"})
		}
	}
	list := []*chain{pre, out, l.postrouting()}
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
		list = append(list, c)
	}
	return list
}

// realms returns those in which packets can be addressed to a frontend in the set of a kind.
func (l *layout) classesWith(k kind) (list []lookupClass) {
	for _, r := range []lookupClass{classAddr, classNodePort} {
		reachable := !r.isNodePort() || l.has(set{kind: nodeAddrs})
		if l.has(set{kind: k, class: r}) && reachable {
			list = append(list, r)
		}
	}
	return list
}

// addressedTo matches packets that are addressed to a frontend in the set of a kind.
func (l *layout) addressedTo(r lookupClass, k kind) []stmt {
	match := []stmt{inSet(l.frontend(r, 0), set{kind: k, class: r})}
	if r.isNodePort() {
		match = append([]stmt{inSet(l.destination(0), set{kind: nodeAddrs})}, match...)
	}
	return match
}

// realm returns the chains of a realm: the first, and one for each number of slots.
func (l *layout) classChains(r lookupClass) []*chain {
	first := newChain(r.chain(), "packets to "+set{kind: frontends, class: r}.name())
	list := []*chain{}
	for _, s := range l.ordered(bySize, r) {
		list = append(list, l.pick(s))
	}
	list = append(list, l.affinityChains(r)...)
	if r.isLocal() {
		return append(list, l.fromLocal(r)...)
	}
	if r == classAddr && l.has(set{kind: restricted}) {
		l.restrict(first)
	}
	if split := (set{kind: frontends, class: r.local()}); l.has(split) {
		first.rule(inSet(l.frontend(r, 0), split), jump(r.local().chain()))
	}
	l.mark(first, r, masquerade, setMark(l.host.Mark()))
	l.mark(first, r, masqueradeNonLocal, jump(markNonLocalChain))
	l.mark(first, r, masqueradeHost, fromHost, setMark(l.host.Mark()))
	l.dispatch(first, r)
	return append(list, first)
}

// mark appends what is done to packets of frontends in a set of a kind.
func (l *layout) mark(c *chain, r lookupClass, k kind, do ...stmt) {
	if s := (set{kind: k, class: r}); l.has(s) {
		c.rule(append([]stmt{inSet(l.frontend(r, 0), s)}, do...)...)
	}
}

// restrict drops packets to restricted frontends from sources that may not use them.
func (l *layout) restrict(c *chain) {
	match := []stmt{inSet(l.frontend(classAddr, 0), set{kind: restricted})}
	if s := (set{kind: sourceRanges}); l.has(s) {
		front := l.frontend(classAddr, 0)
		match = append(match, notInSet(join(front, l.source(front.next)), s))
	}
	c.rule(append(match, dropVerdict)...)
}

// dispatch appends what leads packets to the chain of their number of slots, or of
// clients that keep their endpoint.
func (l *layout) dispatch(c *chain, r lookupClass) {
	if s := (set{kind: withAffinity, class: r}); l.has(s) {
		c.rule(inSet(l.frontend(r, 0), s), goTo(r.prefix()+"sticky"))
	}
	for _, s := range l.ordered(bySize, r) {
		c.rule(inSet(l.frontend(r, 0), s), goTo(s.chain()))
	}
}

// ordered returns the sets of a kind and realm, those with more frontends first.
// The order goes by powers of two, so that it seldom changes.
func (l *layout) ordered(k kind, r lookupClass) []set {
	var list []set
	for s, n := range l.counts {
		if s.kind == k && s.class == r && n > 0 {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b set) int {
		return cmp.Or(cmp.Compare(log2(l.counts[b]), log2(l.counts[a])), a.compare(b))
	})
	return list
}

func log2(count int) int { return bits.Len(uint(count)) }

// fromLocal returns the chains for frontends that treat host processes and local
// sources differently. All others go on as if they had not been here.
func (l *layout) fromLocal(r lookupClass) []*chain {
	first := newChain(r.chain(), "host processes and local sources are served differently")
	host := newChain(r.prefix()+"host", "host processes")
	near := newChain(r.prefix()+"sources", "local sources")
	pick := newChain(r.prefix()+"pick", "whom host processes and local sources reach")
	first.rule(fromHost, goTo(host.Name))
	for _, c := range l.localSources() {
		first.rule(c, goTo(near.Name))
	}
	bit := setMark(l.host.Mark())
	l.mark(host, r, masquerade, bit)
	l.mark(host, r, masqueradeNonLocal, jump(markNonLocalChain))
	l.mark(host, r, masqueradeHost, bit)
	host.rule(goTo(pick.Name))
	l.mark(near, r, masquerade, bit)
	near.rule(goTo(pick.Name))
	l.dispatch(pick, r)
	pick.rule(acceptVerdict) // nobody to reach: refused or dropped later, never balanced as others are
	return []*chain{pick, near, host, first}
}

// pick returns the chain that takes one of the slots of a sized set's frontends.
func (l *layout) pick(s set) *chain {
	c := newChain(s.chain(), fmt.Sprintf("one of %d slots", s.size))
	for _, below := range moduli(s.size) {
		front := l.frontend(s.class, 0)
		slots := set{kind: slotMap, class: s.class, size: s.size}
		c.rule(l.dnat(mapLookup(join(front, numgen(below, front.next)), 0, slots, 8), 8))
	}
	return c
}

// moduli returns what random numbers are drawn below, one after the other until
// one falls on a slot.
func moduli(size uint32) []uint32 {
	if sure := minSlots(size); sure < size {
		return []uint32{size, size, sure}
	}
	return []uint32{size}
}

// postrouting masquerades what is marked, and what reaches itself.
func (l *layout) postrouting() *chain {
	c := newBaseChain("postrouting", "nat", unix.NF_INET_POST_ROUTING, prioritySNAT)
	if s := (set{kind: hairpins}); l.has(s) {
		front := l.frontend(classAddr, 0)
		c.rule(hasDNAT, inSet(join(front, l.source(front.next)), s), masqueradeStmt)
	}
	bit := l.host.Mark()
	c.rule(unmarked(bit), returnVerdict)
	c.rule(clearMark(bit)) // a tunnel would carry the mark on to the outer packet
	c.rule(masqueradeStmt)
	return c
}

// refusals returns the chain that refuses new connections. Those that were
// balanced are addressed to their endpoint by now and are none of its business.
func (l *layout) refusals() *chain {
	c := newChain(refusalsChain, "new connections that were not balanced")
	c.rule(hasDNAT, returnVerdict)
	for _, r := range l.classesWith(noEndpointsReject) {
		c.rule(append(l.addressedTo(r, noEndpointsReject), goTo(refusedChain))...)
	}
	for _, r := range l.classesWith(noEndpointsDrop) {
		c.rule(append(l.addressedTo(r, noEndpointsDrop), dropVerdict)...)
	}
	for _, r := range l.classesWith(frontends) {
		// Its slot was moved twice. It will be sent again; its connection goes with it.
		c.rule(append([]stmt{unconfirmed}, append(l.addressedTo(r, frontends), dropVerdict)...)...)
	}
	early := len(c.rules) // what follows would refuse packets to frontends that are not there yet
	if s := (set{kind: vips}); l.has(s) {
		c.rule(inSet(l.destination(0), s), goTo(refusedChain))
	}
	for _, p := range l.host.ServiceCIDRs {
		match := []stmt{l.toPrefix(p)}
		if s := (set{kind: exempt}); l.has(s) {
			match = append(match, notInSet(l.destination(0), s))
		}
		c.rule(append(match, goTo(refusedChain))...)
	}
	c.deferred = len(c.rules) - early
	return c
}

// setsInUse returns the sets that have elements, in order, with those that packets
// fill where clients keep their endpoint.
func setsInUse(counts map[set]int) []set {
	var list []set
	keeps := false
	for s, n := range counts {
		if n > 0 {
			list = append(list, s)
			keeps = keeps || s.kind == withAffinity
		}
	}
	if keeps {
		list = append(list, dynamicSets...)
	}
	slices.SortFunc(list, set.compare)
	return list
}
