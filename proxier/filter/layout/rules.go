// Package layout renders a State as iptables chains and ip sets: as Rules, which are text, and
// the Members of sets. iptables mode and ipvs mode share it. It is pure.
//
// Chains of frontends form a tree, so that a packet traverses tens of rules; a pool
// is one chain, an endpoint none. Refused addresses and ports are members of sets that
// constant rules look up. What rules a host cannot have, it refuses: see Unsupported.
//
//	unsupported.go        what rules need, and the host lacks
//	update.go             Changes by a delta, and those of them that wait; what the kernel holds
//	rules.go, ipvs.go     the Rules of a State, and what ipvs mode has besides
//	tree.go, frontend.go, host.go, names.go  chains
//	sets.go               members of sets
package layout

import (
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
	members             map[member]int // how many frontends need each: a node port and an external address can be the same
	placed              int            // node ports on addresses of their own
	overlaps            overlaps

	withheld map[ipset.Entry]bool     // see Withhold
	late     map[string][]ipset.Entry // see Guards
}

// NewRules returns the Rules of iptables mode for a State without services.
func NewRules(fam policy.Family) *Rules { return newRules(fam, false) }

// NewIPVSRules returns those of ipvs mode.
func NewIPVSRules(fam policy.Family) *Rules { return newRules(fam, true) }

func newRules(fam policy.Family, byIPVS bool) *Rules {
	f := &frame{words: Dialects[fam], byIPVS: byIPVS, ipvsBalances: byIPVS}
	return &Rules{
		frame:     f,
		services:  tree{root: Services, addrLen: fam.Bits() / 8},
		nodePorts: tree{root: NodePorts},
		resolved:  map[source.Key]*policy.Resolved{},
		members:   map[member]int{},
		overlaps:  newOverlaps(f),
	}
}

// Reset sets the rules to those of st.
func (r *Rules) Reset(st *policy.State) error {
	if err := checkHost(&st.Host); err != nil {
		return err
	}
	r.host = st.Host
	r.members, r.overlaps, r.placed, r.late = map[member]int{}, newOverlaps(r.frame), 0, nil
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
			r.eachMember(f, func(m member, n int) { count(r.members, m, n) })
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
	r.ipvsBalances = r.byIPVS || serves
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
func (r *Rules) Jumps() []Jump {
	if r.byIPVS {
		return ipvsJumps
	}
	return sharedJumps
}

// Tables returns the tables of the chains.
func (r *Rules) Tables() []string {
	if r.byIPVS {
		return []string{"nat", "filter", "mangle"}
	}
	return []string{"nat", "filter"}
}

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
		for _, a := range r.host.Addrs(&policy.Frontend{Key: policy.FrontendKey{Kind: policy.NodePort}}) { // without addresses of their own
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

// BuiltIn returns the built-in chains with jumps to ours, in any mode.
func BuiltIn() (chains []string) {
	for _, j := range ipvsJumps {
		if !slices.Contains(chains, j.Chain) {
			chains = append(chains, j.Chain)
		}
	}
	return chains
}

// count adds n to how many need a member.
func count(members map[member]int, m member, n int) {
	if members[m] += n; members[m] == 0 {
		delete(members, m)
	}
}

// eachMember calls do with the members that a frontend adds to sets, and how often.
func (r *Rules) eachMember(f *policy.Frontend, do func(m member, n int)) {
	sets := r.setsOf(f)
	if len(sets) == 0 && !f.Restricted {
		return
	}
	for _, a := range r.host.Addrs(f) {
		e := portOf(f)
		e.Addr = a
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
	sets := map[string]Members{}
	for _, s := range r.sets() {
		sets[r.words.Set(s.Name)] = Members{Type: s.Type, Entries: map[ipset.Entry]struct{}{}}
	}
	add := func(set string, e ipset.Entry) { sets[r.words.Set(set)].Entries[e] = struct{}{} }
	for m := range r.members {
		if !r.withholds(m) {
			add(m.set, m.Entry)
		}
	}
	refused := st.RefusedAddrs
	if r.byIPVS {
		refused = st.BoundAddrs
	}
	for a := range refused {
		add(r.refusedSet(), addrEntry(a))
	}
	for _, a := range r.host.ServiceCIDRExempt {
		add(exemptSet, addrEntry(a))
	}
	for h := range st.Hairpins {
		add(hairpinSet, hairpinEntry(h))
	}
	for name, entries := range r.late {
		for _, e := range entries {
			sets[name].Entries[e] = struct{}{}
		}
	}
	return sets
}

func (r *Rules) withholds(m member) bool { return m.set == servedSet && r.withheld[m.Entry] }
