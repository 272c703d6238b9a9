package filter

import (
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// sums are checksums of chains, by table and chain.
type sums map[string]map[string]xtables.Sum

// A difference leads from the actual to the desired contents of the kernel.
type difference struct {
	tool   string // name of the programs, for changes
	script xtables.Script
	want   sums

	referenced map[chainID]bool // obsolete chains that foreign rules jump to
	sets       map[string]layout.Members

	create       []ipset.Set
	mismatched   []string // sets with our names but other properties, to be removed before anything else
	gained, lost map[string][]ipset.Entry
	obsolete     []string // sets to be removed last

	passed []passing // moves of jumps

	edits []edit
}

// compareChains notes how to change chains. Obsolete ones are removed, or emptied if
// keep says so.
func (d *difference) compareChains(have sums, chains func(layout.Emit), keep func(chainID) bool) {
	d.want, d.referenced = sums{}, map[chainID]bool{}
	for table := range have {
		d.want[table] = make(map[string]xtables.Sum, len(have[table]))
	}
	chains(func(table, name string, rules []byte) {
		sum := xtables.SumOf(rules)
		d.want[table][name] = sum
		was, exists := have[table][name]
		if exists && was == sum {
			return
		}
		d.script.Set(table, name, rules)
		op := "add"
		if exists {
			op = "change"
		}
		d.edit(op, chainEdit, table, name)
	})
	for _, table := range slices.Sorted(maps.Keys(have)) {
		for _, name := range slices.Sorted(maps.Keys(have[table])) {
			if _, wanted := d.want[table][name]; !wanted {
				d.removeOrEmpty(chainID{table, name}, have[table][name], keep)
			}
		}
	}
}

// removeOrEmpty notes what to do with an obsolete chain.
func (d *difference) removeOrEmpty(id chainID, holds xtables.Sum, keep func(chainID) bool) {
	empty := xtables.SumOf(nil)
	switch {
	case !keep(id):
		d.script.Remove(id.table, id.name)
		d.edit("remove", chainEdit, id.table, id.name)
		return
	case holds != empty:
		d.script.Set(id.table, id.name, nil)
		d.edit("change", chainEdit, id.table, id.name)
	}
	d.want[id.table][id.name], d.referenced[id] = empty, true
}

// compareJumps notes how to change the built-in chains. If the jumps of one are not
// exactly those desired, in their order and in place, all are inserted again at its top.
// Only the jump to xtables.UserChain must come before ours, which accept.
func (d *difference) compareJumps(tables map[string]*xtables.Table, jumps []layout.Jump, o *order) {
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		tab := tables[name]
		for _, chain := range slices.Sorted(maps.Keys(tab.Policies)) {
			id := chainID{name, chain}
			want := wantedJumps(jumps, id)
			if o.inPlace(tab, id, want) {
				continue
			}
			for _, rule := range tab.Jumps[chain] {
				d.script.DeleteJump(name, chain, rule)
			}
			for _, rule := range slices.Backward(want) {
				d.script.InsertJump(name, chain, rule, tab.UserJumps[chain].Rules)
			}
			d.edit("change", jumpsEdit, name, chain)
			if ahead := tab.Ahead[chain]; len(ahead) > 0 && len(want) > 0 {
				d.passed = append(d.passed, passing{id, ahead})
			}
		}
	}
}

// wantedJumps returns the desired jumps of a built-in chain to ours, in order.
func wantedJumps(jumps []layout.Jump, id chainID) []string {
	var want []string
	for _, j := range jumps {
		if j.Table == id.table && j.Chain == id.name {
			want = append(want, j.Rule)
		}
	}
	return want
}

// compareSets notes how to change sets.
func (d *difference) compareSets(have map[string]*ipset.Listing, want map[string]layout.Members, v6 bool) {
	d.gained, d.lost, d.sets = map[string][]ipset.Entry{}, map[string][]ipset.Entry{}, want
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, l := want[name], have[name]
		switch {
		case l == nil:
			d.create = append(d.create, ipset.Set{Name: name, Type: w.Type, IPv6: v6, MaxElem: setSize(len(w.Entries))})
			d.edit("add", setEdit, "", name)
			l = &ipset.Listing{}
		case l.Type != w.Type || l.IPv6 != v6 || l.HasTimeout:
			d.mismatched = append(d.mismatched, name)
			d.edit("change", setEdit, "", name)
			continue
		}
		d.compareMembers(name, l.Entries, w.Entries)
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; !wanted {
			d.obsolete = append(d.obsolete, name)
			d.edit("remove", setEdit, "", name)
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
	d.edit("change", membersEdit, "", name)
}

func (d *difference) edit(op string, kind editKind, table, name string) {
	d.edits = append(d.edits, edit{op, object{kind, table, name}})
}

// changes returns the difference as Plan reports it.
func (d *difference) changes() (list []proxier.Change) {
	for _, e := range d.edits {
		switch e.kind {
		case chainEdit, jumpsEdit, setEdit:
			list = append(list, proxier.Change{Op: e.op, Object: e.text(d.tool)})
		case membersEdit:
			list = append(list, memberChanges("add", e.name, d.gained[e.name])...)
			list = append(list, memberChanges("remove", e.name, d.lost[e.name])...)
		}
	}
	return list
}

// compare returns the difference from h to c.
func compare(h *layout.Actual, c layout.Desired, st *policy.State, o *order) *difference {
	v6 := st.Family == policy.IPv6
	d := &difference{tool: xtables.Base(v6)}
	have := sums{}
	for name, tab := range h.Tables {
		have[name] = tab.Chains
	}
	d.compareChains(have, c.Chains, func(id chainID) bool { return len(h.Tables[id.table].ReferencedBy(id.name)) > 0 })
	d.compareJumps(h.Tables, c.Jumps(), o)
	d.compareSets(h.Sets, c.Sets(st), v6)
	return d
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
	for _, jumps := range [][]layout.Jump{before.Jumps(), after.Jumps()} {
		for _, j := range jumps {
			tableOf(h, j.Table).Policies[j.Chain] = ""
		}
	}
	for _, j := range before.Jumps() {
		tab := tableOf(h, j.Table)
		tab.Jumps[j.Chain] = append(tab.Jumps[j.Chain], j.Rule)
	}
	for _, name := range after.Tables() {
		tableOf(h, name)
	}
	before.Chains(func(table, name string, rules []byte) { tableOf(h, table).Chains[name] = xtables.SumOf(rules) })
	for name, m := range before.Sets(had) {
		h.Sets[name] = &ipset.Listing{Set: ipset.Set{Name: name, Type: m.Type, IPv6: v6}, Entries: slices.Collect(maps.Keys(m.Entries))}
	}
	return compare(h, after, st, &order{}).changes(), nil
}

// tableOf returns a table of h, which it makes if there is none.
func tableOf(h *layout.Actual, name string) *xtables.Table {
	if h.Tables[name] == nil {
		h.Tables[name] = xtables.NewTable()
	}
	return h.Tables[name]
}
