package layout

import (
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// Rules are the chains and sets of one family. They follow a State by Reset and
// Update, and depend on nothing but the State that results.
type Rules struct {
	words  Dialect
	layout *layout
	host   policy.Host

	ipvsBalances bool // now, or until these rules are written

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
	return &Rules{
		words:     Dialects[fam],
		layout:    l,
		services:  tree{root: Services, addrLen: fam.Bits() / 8},
		nodePorts: tree{root: NodePorts},
		resolved:  map[source.Key]*policy.Resolved{},
		members:   memberCount{},
		overlaps:  newOverlaps(),

		ipvsBalances: l.ipvs,
	}
}

// Reset sets the rules to those of st.
func (r *Rules) Reset(st *policy.State) error {
	if err := checkHost(&st.Host); err != nil {
		return err
	}
	r.host = st.Host
	r.members, r.overlaps, r.placed = memberCount{}, newOverlaps(), 0
	r.resolved = make(map[source.Key]*policy.Resolved, len(st.Services))
	var services, nodePorts []entry
	for key, res := range st.Services {
		r.resolved[key] = res
		for _, f := range res.Frontends {
			r.addOverlap(f)
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
	r.ipvsBalances = r.layout.ipvs || serves
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

// serviceChains emits the chains that belong to one service: its pools, and those
// that separate local sources from others.
func (r *Rules) serviceChains(res *policy.Resolved, emit Emit) {
	for _, p := range res.Pools {
		if r.layout.usesPool(res, p) {
			r.poolChains(p, emit)
		}
	}
	done := map[string]bool{}
	for _, f := range res.Frontends {
		if !f.Split() || !r.layout.hasRules(f) {
			continue
		}
		if name := splitChain(f); !done[name] {
			done[name] = true
			r.splitRules(f, emit)
		}
	}
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
