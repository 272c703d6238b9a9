package layout

import (
	"bytes"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Changes are what an Update changed, or may have changed.
type Changes struct {
	// All: any chain may have changed. Otherwise those in Chains, all in table nat.
	All    bool
	Chains map[string][]byte // rules by name; nil: removed

	Gained, Lost map[string][]ipset.Entry // members by the full name of the set
}

// Update applies a delta that leads to st. Its cost does not depend on the number of other services.
func (r *Rules) Update(st *policy.State, d *policy.Delta) *Changes {
	ch := &Changes{Chains: map[string][]byte{}, Gained: map[string][]ipset.Entry{}, Lost: map[string][]ipset.Entry{}}
	r.late = nil
	r.updateServices(st, d, ch)
	old, now := frontends(d)
	anyPlaced := r.placed > 0
	r.updateTrees(old, now, ch)
	if anyPlaced != (r.placed > 0) {
		r.nodeChain(&r.services, r.services.top(), &chain{}, ch.set)
	}
	r.updateMembers(old, now, ch)
	refused := d.RefusedAddrs
	if r.byIPVS {
		refused = d.BoundAddrs
	}
	applySetDelta(ch, r.words.Set(r.refusedSet()), refused, addrEntry)
	applySetDelta(ch, r.words.Set(hairpinSet), d.Hairpins, hairpinEntry)
	return ch
}

// set notes the rules of a chain, which may be unchanged.
func (ch *Changes) set(_, name string, rules []byte) { ch.Chains[name] = append([]byte{}, rules...) }

// updateServices updates the chains that belong to single services.
func (r *Rules) updateServices(st *policy.State, d *policy.Delta, ch *Changes) {
	for _, s := range d.Services {
		if s.Old != nil {
			delete(r.resolved, s.Old.Key)
			r.serviceChains(s.Old, func(_, name string, _ []byte) { ch.Chains[name] = nil })
		}
	}
	for _, s := range d.Services {
		if s.New != nil {
			r.resolved[s.New.Key] = s.New
			r.serviceChains(s.New, ch.set)
		}
	}
	for _, s := range d.Services {
		if !s.Part {
			continue
		}
		if r.resolved[s.New.Key] = st.Services[s.New.Key]; r.resolved[s.New.Key] == nil {
			delete(r.resolved, s.New.Key)
		}
	}
}

// updateTrees puts frontends into the trees, and counts the node ports on addresses of their own.
// A frontend may move from one service to another.
func (r *Rules) updateTrees(old, now []*policy.Frontend, ch *Changes) {
	services, nodePorts := map[key]*policy.Frontend{}, map[key]*policy.Frontend{} // nil: removed
	put := func(f, value *policy.Frontend) {
		switch {
		case !r.hasRules(f):
		case f.Key.Kind == policy.NodePort:
			nodePorts[r.nodePorts.key(f)] = value
		default:
			services[r.services.key(f)] = value
		}
	}
	for _, f := range old {
		put(f, nil)
		r.placed -= placed(f)
	}
	for _, f := range now {
		put(f, f)
		r.placed += placed(f)
	}
	r.updateTree(&r.services, services, ch)
	r.updateTree(&r.nodePorts, nodePorts, ch)
}

// updateTree puts frontends into a tree and notes the chains that this affects.
func (r *Rules) updateTree(t *tree, changed map[key]*policy.Frontend, ch *Changes) {
	for k, f := range changed {
		if sameRules(r.frame, t.find(k), f) {
			t.put(k, f)
			delete(changed, k)
		}
	}
	if len(changed) == 0 {
		return
	}
	before, after := map[string]node{}, map[string]node{}
	for k := range changed {
		t.collectPath(k, before)
	}
	for k, f := range changed {
		t.put(k, f)
	}
	if t.flat {
		t.updateFlat()
		ch.All = true
		return
	}
	for k := range changed {
		t.collectPath(k, after)
	}
	for name, n := range maps.Clone(after) {
		if _, old := before[name]; old {
			continue
		}
		if t.height(n) > maxDepth {
			t.flat = true
			ch.All = true
			return
		}
		t.collectChildren(n, after) // a new chain may be between old ones
	}
	for name := range before {
		ch.Chains[name] = nil
	}
	c := &chain{}
	for _, n := range after {
		r.nodeChain(t, n, c, ch.set)
	}
}

// sameRules reports whether two frontends with the same key, or nil, have the same rules.
func sameRules(fr *frame, a, b *policy.Frontend) bool {
	if a == nil || b == nil {
		return a == b
	}
	var x, y chain
	fr.frontendRules(&x, a)
	fr.frontendRules(&y, b)
	return bytes.Equal(x.rules, y.rules)
}

// updateMembers updates the sets that hold frontends.
func (r *Rules) updateMembers(old, now []*policy.Frontend, ch *Changes) {
	net := map[member]int{}
	stay := r.overlaps.meeting(old, now)
	for _, f := range slices.Concat(old, stay) {
		r.eachMember(f, func(m member, n int) { net[m] -= n })
	}
	for _, f := range old {
		r.overlaps.remove(f)
	}
	for _, f := range now {
		r.overlaps.add(f, r.resolved[f.ServicePort.Key])
	}
	for _, f := range slices.Concat(now, stay) {
		r.eachMember(f, func(m member, n int) { net[m] += n })
	}
	for m, n := range net {
		was := r.members[m]
		count(r.members, m, n)
		ch.member(r.words.Set(m.set), m.Entry, was > 0 && !r.withholds(m), was+n > 0)
	}
}

// frontends returns the frontends that a delta removes and adds.
func frontends(d *policy.Delta) (old, now []*policy.Frontend) {
	for _, s := range d.Services {
		if s.Old != nil {
			old = append(old, s.Old.Frontends...)
		}
		if s.New != nil {
			now = append(now, s.New.Frontends...)
		}
	}
	return old, now
}

// applySetDelta applies the change of a counted set.
func applySetDelta[T comparable](ch *Changes, set string, d policy.SetDelta[T], entry func(T) ipset.Entry) {
	for _, v := range d.Gained {
		ch.member(set, entry(v), false, true)
	}
	for _, v := range d.Lost {
		ch.member(set, entry(v), true, false)
	}
}

func (ch *Changes) member(set string, e ipset.Entry, was, is bool) {
	switch {
	case is && !was:
		ch.Gained[set] = append(ch.Gained[set], e)
	case was && !is:
		ch.Lost[set] = append(ch.Lost[set], e)
	}
}

// TakeServed removes from ch, and returns, the changes that must wait until IPVS holds
// the servers: which frontends it serves.
func (r *Rules) TakeServed(ch *Changes) *Changes {
	name := r.words.Set(servedSet)
	served := &Changes{Gained: map[string][]ipset.Entry{name: ch.Gained[name]}, Lost: map[string][]ipset.Entry{}}
	delete(ch.Gained, name)
	ch.Lost[name] = slices.DeleteFunc(ch.Lost[name], func(e ipset.Entry) bool { return r.withheld[e] }) // never there
	return served
}

// Withhold sets, after Reset, or after Update with what TakeServed returned, which of
// all frontends have no server. They do not count as served: packets to addresses on
// our device are refused then, or daemons of the host would answer. It adds to changes
// those that gained or lost their server.
func (r *Rules) Withhold(entries map[ipset.Entry]bool, changes *Changes) {
	was := r.withheld
	r.withheld = entries
	if changes == nil {
		return
	}
	name := r.words.Set(servedSet)
	served := func(e ipset.Entry) bool { return r.members[member{servedSet, e}] > 0 }
	for e := range was {
		if !entries[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Gained[name] = append(changes.Gained[name], e)
		}
	}
	for e := range entries {
		if !was[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Lost[name] = append(changes.Lost[name], e)
		}
	}
	changes.Gained[name] = slices.DeleteFunc(changes.Gained[name], func(e ipset.Entry) bool { return entries[e] })
}

// Unguarded returns the frontends that the rules in the kernel, h, do not guard whole: some packets pass that the
// frontend drops, or are left alone that it masquerades. Rules of iptables mode, which come before IPVS, masquerade all.
func (r *Rules) Unguarded(h *Actual) map[ipset.Entry]bool {
	asked := map[string]bool{FirewalledSet: h.leadsTo("INPUT", "")} // the sets that matter: does a packet meet them?
	if !h.Balances() {
		meets := h.leadsTo("PREROUTING", masqueradeChain) && h.leadsTo("OUTPUT", masqueradeChain)
		asked[everyoneSet], asked[nonLocalSet], asked[processesSet] = meets, meets, meets
	}
	held := map[member]bool{}
	for name, asked := range asked {
		if set := h.Sets[r.words.Set(name)]; set != nil && asked {
			for _, e := range set.Entries {
				held[member{name, e}] = true
			}
		}
	}
	out := map[ipset.Entry]bool{}
	for m, n := range r.members {
		if _, matters := asked[m.set]; matters && n > 0 && !held[m] {
			out[m.Entry] = true
		}
	}
	return out
}

// guardSets say who may use frontends, and whom to masquerade there.
var guardSets = []string{FirewalledSet, rangesSet, everyoneSet, nonLocalSet, processesSet}

// TakeGuards removes from ch, and returns, what these sets must not lose before IPVS has stopped balancing to
// endpoints that leave: leaving has their frontends. One that stays restricted loses ranges at once.
func (r *Rules) TakeGuards(ch *Changes, leaving map[ipset.Entry]bool) *Changes {
	opened := map[ipset.Entry]bool{}
	for _, e := range ch.Lost[r.words.Set(FirewalledSet)] {
		opened[e] = leaving[e]
	}
	late := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, set := range guardSets {
		waits := leaving
		if set == rangesSet {
			waits = opened
		}
		moveLost(r.words.Set(set), ch, late, waits)
	}
	return late
}

// moveLost moves what a set loses of some frontends to other changes.
func moveLost(set string, from, to *Changes, of map[ipset.Entry]bool) {
	var stay []ipset.Entry
	for _, e := range from.Lost[set] {
		if of[ipset.Entry{Addr: e.Addr, Protocol: e.Protocol, Port: e.Port}] {
			to.Lost[set] = append(to.Lost[set], e)
		} else {
			stay = append(stay, e)
		}
	}
	if from.Lost[set] = stay; stay == nil {
		delete(from.Lost, set)
	}
}

// Guards returns the same after Reset, if the kernel holds h. Until the next Update, Sets still has what is lost later.
func (r *Rules) Guards(h *Actual, leaving map[ipset.Entry]bool) *Changes {
	ch := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, s := range r.sets() {
		name := r.words.Set(s.Name)
		l := h.Sets[name]
		if !slices.Contains(guardSets, s.Name) || l == nil || l.Type != s.Type {
			continue
		}
		for _, e := range l.Entries {
			if _, stays := r.members[member{s.Name, e}]; !stays {
				ch.Lost[name] = append(ch.Lost[name], e)
			}
		}
	}
	late := r.TakeGuards(ch, leaving)
	r.late = late.Lost
	return late
}
