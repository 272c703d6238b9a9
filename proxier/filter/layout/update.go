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
