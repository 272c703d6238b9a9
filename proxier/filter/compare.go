package filter

import (
	"maps"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A difference leads from the actual to the desired contents of the kernel.
type difference struct {
	plan    bool             // changes are wanted. A sync of 10,000 services would format many that nobody reads
	changes []proxier.Change // as Plan reports them
	tool    string           // name of the programs, for changes

	script     xtables.Script
	want       map[string]map[string]xtables.Sum // of chains, by table and name
	referenced map[object]bool                   // obsolete chains that foreign rules jump to
	passed     map[object][]string               // foreign rules that jumps are moved ahead of

	sets         map[string]layout.Members
	create       []ipset.Set
	mismatched   []string // sets with our names but other properties, to be removed before anything else
	gained, lost map[string][]ipset.Entry
	obsolete     []string // sets to be removed last
}

// note adds a change, if they are wanted.
func (d *difference) note(op string, o object) {
	if d.plan {
		d.changes = append(d.changes, proxier.Change{Op: op, Object: o.text(d.tool)})
	}
}

// noteMembers adds the same change of members of a set, in order.
func (d *difference) noteMembers(op, set string, members []ipset.Entry) {
	if !d.plan {
		return
	}
	first := len(d.changes)
	for _, e := range members {
		d.changes = append(d.changes, proxier.Change{Op: op, Object: "ip set " + set + " member " + e.String()})
	}
	slices.SortFunc(d.changes[first:], func(a, b proxier.Change) int { return strings.Compare(a.Object, b.Object) })
}

// compareChains notes how to change chains. Obsolete ones are removed, or emptied if
// keep says so.
func (d *difference) compareChains(have map[string]map[string]xtables.Sum, chains func(layout.Emit), keep func(object) bool) {
	d.want, d.referenced = map[string]map[string]xtables.Sum{}, map[object]bool{}
	for table := range have {
		d.want[table] = make(map[string]xtables.Sum, len(have[table]))
	}
	chains(func(table, name string, rules []byte) {
		sum := xtables.SumOf(rules)
		d.want[table][name] = sum
		was, exists := have[table][name]
		switch {
		case exists && was == sum:
			return
		case exists:
			d.note("change", chainObject(table, name))
		default:
			d.note("add", chainObject(table, name))
		}
		d.script.Set(table, name, rules)
	})
	for _, table := range slices.Sorted(maps.Keys(have)) {
		for _, name := range slices.Sorted(maps.Keys(have[table])) {
			if _, wanted := d.want[table][name]; !wanted {
				d.removeOrEmpty(chainObject(table, name), have[table][name], keep)
			}
		}
	}
}

// removeOrEmpty notes what to do with an obsolete chain.
func (d *difference) removeOrEmpty(id object, holds xtables.Sum, keep func(object) bool) {
	empty := xtables.SumOf(nil)
	switch {
	case !keep(id):
		d.script.Remove(id.table, id.name)
		d.note("remove", id)
		return
	case holds != empty:
		d.script.Set(id.table, id.name, nil)
		d.note("change", id)
	}
	d.want[id.table][id.name], d.referenced[id] = empty, true
}

// compareJumps notes how to change the built-in chains. If the jumps of one are not
// exactly those desired, in their order and in place, all are inserted again at its top.
// Only the jump to xtables.UserChain must come before ours, which accept.
func (d *difference) compareJumps(tables map[string]*xtables.Table, jumps map[object][]string, o *order) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		tab := tables[name]
		for _, chain := range slices.Sorted(maps.Keys(tab.Policies)) {
			id := jumpsObject(name, chain)
			want := jumps[id]
			if o.inPlace(tab, id, want) {
				continue
			}
			for _, rule := range tab.Jumps[chain] {
				d.script.DeleteJump(name, chain, rule)
			}
			for _, rule := range slices.Backward(want) {
				d.script.InsertJump(name, chain, rule, tab.UserJumps[chain].Rules)
			}
			d.note("change", id)
			if ahead := tab.Ahead[chain]; len(ahead) > 0 && len(want) > 0 {
				if d.passed == nil {
					d.passed = map[object][]string{}
				}
				d.passed[id] = ahead
			}
		}
	}
}

// jumpsOf returns the desired jumps to ours of built-in chains, in order.
func jumpsOf(r *layout.Rules) map[object][]string {
	jumps := map[object][]string{}
	for _, j := range r.Jumps() {
		id := jumpsObject(j.Table, j.Chain)
		jumps[id] = append(jumps[id], j.Rule)
	}
	return jumps
}

// compareSets notes how to change sets.
func (d *difference) compareSets(have map[string]*ipset.Listing, want map[string]layout.Members, v6 bool) {
	d.gained, d.lost, d.sets = map[string][]ipset.Entry{}, map[string][]ipset.Entry{}, want
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, l := want[name], have[name]
		switch {
		case l == nil:
			d.create = append(d.create, ipset.Set{Name: name, Type: w.Type, IPv6: v6, MaxElem: setSize(len(w.Entries))})
			d.note("add", setObject(name))
			l = &ipset.Listing{}
		case l.Type != w.Type || l.IPv6 != v6 || l.HasTimeout:
			d.mismatched = append(d.mismatched, name)
			d.note("change", setObject(name))
			continue
		}
		d.compareMembers(name, l.Entries, w.Entries)
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; !wanted {
			d.obsolete = append(d.obsolete, name)
			d.note("remove", setObject(name))
		}
	}
}

func (d *difference) compareMembers(name string, have []ipset.Entry, want map[ipset.Entry]struct{}) {
	held := make(map[ipset.Entry]struct{}, len(have))
	for _, e := range have {
		held[e] = struct{}{}
		if _, wanted := want[e]; !wanted {
			d.lost[name] = append(d.lost[name], e)
		}
	}
	for e := range want {
		if _, ok := held[e]; !ok {
			d.gained[name] = append(d.gained[name], e)
		}
	}
	d.noteMembers("add", name, d.gained[name])
	d.noteMembers("remove", name, d.lost[name])
}

// compare returns the difference from h to r, with changes if they are wanted.
func compare(h *layout.Actual, r *layout.Rules, st *policy.State, o *order, plan bool) *difference {
	v6 := st.Family == policy.IPv6
	d := &difference{plan: plan, tool: xtables.Base(v6)}
	d.compareChains(chainsOf(h.Tables), r.Chains, referencedIn(h.Tables))
	d.compareJumps(h.Tables, jumpsOf(r), o)
	d.compareSets(h.Sets, r.Sets(st), v6)
	return d
}

// chainsOf returns the chains of ours in tables.
func chainsOf(tables map[string]*xtables.Table) map[string]map[string]xtables.Sum {
	chains := map[string]map[string]xtables.Sum{}
	for name, tab := range tables {
		chains[name] = tab.Chains
	}
	return chains
}

// referencedIn returns a function that reports whether foreign rules jump to a chain.
func referencedIn(tables map[string]*xtables.Table) func(object) bool {
	return func(id object) bool { return len(tables[id.table].ReferencedBy(id.name)) > 0 }
}

// minSetSize is the smallest maximum of members that a set gets. It costs nothing.
const minSetSize = 1 << 20

// setSize returns the maximum of members for a set with n of them.
func setSize(n int) uint32 { return uint32(max(minSetSize, 2*n)) }

// Compare returns what Plan says where the kernel holds one thing exactly and is to hold
// another, each of its State. It needs no kernel.
func Compare(before *layout.Rules, had *policy.State, after *layout.Rules, st *policy.State) ([]proxier.Change, error) {
	if err := before.Reset(had); err != nil {
		return nil, err
	}
	if err := after.Reset(st); err != nil {
		return nil, err
	}
	v6 := st.Family == policy.IPv6
	h := &layout.Actual{Tables: map[string]*xtables.Table{}, Sets: map[string]*ipset.Listing{}}
	for id, rules := range jumpsOf(before) {
		tab := tableOf(h, id.table)
		tab.Policies[id.name], tab.Jumps[id.name] = "", rules
	}
	for id := range jumpsOf(after) {
		tableOf(h, id.table).Policies[id.name] = ""
	}
	for _, name := range after.Tables() {
		tableOf(h, name)
	}
	before.Chains(func(table, name string, rules []byte) { tableOf(h, table).Chains[name] = xtables.SumOf(rules) })
	for name, m := range before.Sets(had) {
		h.Sets[name] = &ipset.Listing{Set: ipset.Set{Name: name, Type: m.Type, IPv6: v6}, Entries: slices.Collect(maps.Keys(m.Entries))}
	}
	return compare(h, after, st, &order{}, true).changes, nil
}

// tableOf returns a table of h, which it makes if there is none.
func tableOf(h *layout.Actual, name string) *xtables.Table {
	if h.Tables[name] == nil {
		h.Tables[name] = xtables.NewTable()
	}
	return h.Tables[name]
}
