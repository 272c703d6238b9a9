package layout

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Rules are the chains and sets of one family. They follow a State by Reset and
// Update, and depend on nothing but the State that results.
type Rules struct {
	*frame

	services, nodePorts tree
	resolved            map[source.Key]*policy.Resolved
	members             memberCount
	placed              int // node ports on addresses of their own
	overlaps            overlaps

	withheld map[ipset.Entry]bool // see Withhold
}

// NewRules returns the Rules of iptables mode for a State without services.
func NewRules(fam policy.Family) *Rules { return newRules(fam, &iptables) }

// NewIPVSRules returns those of ipvs mode.
func NewIPVSRules(fam policy.Family) *Rules { return newRules(fam, &ipvs) }

func newRules(fam policy.Family, l *layout) *Rules {
	f := &frame{words: Dialects[fam], layout: l, ipvsBalances: l.byIPVS}
	return &Rules{
		frame:     f,
		services:  tree{root: Services, addrLen: fam.Bits() / 8},
		nodePorts: tree{root: NodePorts},
		resolved:  map[source.Key]*policy.Resolved{},
		members:   memberCount{},
		overlaps:  newOverlaps(f),
	}
}

// Reset sets the rules to those of st.
func (r *Rules) Reset(st *policy.State) error {
	if err := checkHost(&st.Host); err != nil {
		return err
	}
	r.host = st.Host
	r.members, r.overlaps, r.placed = memberCount{}, newOverlaps(r.frame), 0
	r.resolved = make(map[source.Key]*policy.Resolved, len(st.Services))
	var services, nodePorts []entry
	for key, res := range st.Services {
		r.resolved[key] = res
		for _, f := range res.Frontends {
			r.overlaps.add(f, r.resolved[f.ServicePort.Key])
			r.placed += placed(f)
		}
	}
	for _, res := range r.resolved {
		for _, f := range res.Frontends {
			r.eachMember(f, r.members.add)
			switch {
			case !r.hasRules(f):
			case f.Key.Kind == policy.NodePort:
				nodePorts = append(nodePorts, entry{r.nodePorts.key(f), f})
			default:
				services = append(services, entry{r.services.key(f), f})
			}
		}
	}
	r.services.reset(services)
	r.nodePorts.reset(nodePorts)
	return nil
}

// Observe takes in what the rules depend on in the kernel: whether IPVS balances until
// these rules are written.
func (r *Rules) Observe(h *Actual) {
	_, serves := h.Sets[r.words.Set(servedSet)]
	r.ipvsBalances = r.layout.byIPVS || serves
}

// Chains emits all chains.
func (r *Rules) Chains(emit Emit) {
	r.hostChains(emit)
	c := &chain{}
	for _, t := range []*tree{&r.services, &r.nodePorts} {
		t.walk(t.top(), func(n node) { r.nodeChain(t, n, c, emit) })
	}
	for _, res := range r.resolved {
		r.serviceChains(res, emit)
	}
}

// Jumps returns the rules of built-in chains that jump to ours, in order.
func (r *Rules) Jumps() []Jump { return r.layout.jumps }

// Tables returns the tables of the chains.
func (r *Rules) Tables() []string { return r.layout.tables }

// nodeChain emits the chain of a tree node.
func (r *Rules) nodeChain(t *tree, n node, c *chain, emit Emit) {
	c.start(t.name(n))
	if c.name == NodePorts && r.localhostNodePorts() {
		c.rule(neighbourToLocalhost, "-j RETURN") // to refusals: translated, it would not be known there
	}
	if t.isLeaf(n) {
		for _, e := range t.entries[n.lo:n.hi] {
			r.frontendRules(c, e.f)
		}
	}
	for _, child := range t.children(n) {
		if child.isChain() {
			c.rule(t.match(child, r.words.host), "-j", t.name(child))
		} else {
			r.frontendRules(c, t.entries[child.lo].f)
		}
	}
	if c.name == Services {
		for _, a := range r.nodePortAddrs() {
			c.rule("-d "+addrText(a)+r.words.host, "-j", NodePorts)
		}
		if r.placed > 0 {
			c.rule(r.words.match(placedSet, "dst,dst"), "-j", NodePorts)
		}
	}
	emit("nat", c.name, c.rules)
}

// placed returns 1 for a node port on addresses of its own, else 0.
func placed(f *policy.Frontend) int {
	if f.Placed {
		return 1
	}
	return 0
}

// iptables is the layout of iptables mode: rules of the nat table balance everything.
// They come first: what they balance is not refused.
var iptables = layout{
	tables:   []string{"nat", "filter"},
	chains:   slices.Concat(natChains, filterChains),
	jumps:    sharedJumps,
	sets:     []setType{{vipsSet, ipset.HashIP}},
	hasRules: (*policy.Frontend).Balances,
	usesPool: func(*policy.Resolved, *policy.Pool) bool { return true },
	memberOf: refusalSets,
	refused: addrSet{
		vipsSet,
		func(st *policy.State) map[netip.Addr]int { return st.RefusedAddrs },
		func(d *policy.Delta) policy.SetDelta[netip.Addr] { return d.RefusedAddrs },
	},
	routeOutside: func(c *chain, l policy.Route) { c.goTo(l, "") },
	passServed:   (*frame).passBalanced,
	balanced:     dnatted,
}

// BuiltIn returns the built-in chains with jumps to ours, in any mode.
func BuiltIn() (chains []string) {
	for _, l := range []*layout{&iptables, &ipvs} {
		for _, j := range l.jumps {
			if !slices.Contains(chains, j.Chain) {
				chains = append(chains, j.Chain)
			}
		}
	}
	return chains
}

// eachMember calls do with the members that a frontend adds to sets, and how often.
func (r *Rules) eachMember(f *policy.Frontend, do func(m member, n int)) {
	sets := r.layout.memberOf(f)
	if f.Placed {
		sets = append(sets, placedSet)
	}
	if len(sets) == 0 && !f.Restricted {
		return
	}
	for _, a := range r.host.Addrs(f) {
		e := ipset.Entry{Addr: a, Protocol: uint8(f.Key.Protocol), Port: f.Key.Port}
		if f.Key.Kind == policy.NodePort && !r.overlaps.hasPlace(f, e) {
			continue
		}
		for _, set := range sets {
			do(member{set, e}, 1)
		}
		if f.Restricted {
			do(member{FirewalledSet, e}, 1)
			r.overlaps.eachRange(f, e, do)
		}
	}
}

// Sets returns all sets by name, with their members, after Reset to st.
func (r *Rules) Sets(st *policy.State) map[string]Members {
	types := slices.Concat(SharedSets, r.layout.sets)
	sets := make(map[string]Members, len(types))
	for _, s := range types {
		sets[r.words.Set(s.name)] = Members{Type: s.Type, Entries: map[ipset.Entry]struct{}{}}
	}
	add := func(set string, e ipset.Entry) { sets[r.words.Set(set)].Entries[e] = struct{}{} }
	for m := range r.members {
		if !r.withholds(m) {
			add(m.set, m.Entry)
		}
	}
	for a := range r.layout.refused.addrs(st) {
		add(r.layout.refused.name, addrEntry(a))
	}
	for _, a := range r.host.ServiceCIDRExempt {
		add(exemptSet, addrEntry(a))
	}
	for h := range st.Hairpins {
		add(hairpinSet, hairpinEntry(h))
	}
	return sets
}

func (r *Rules) withholds(m member) bool { return m.set == servedSet && r.withheld[m.Entry] }
