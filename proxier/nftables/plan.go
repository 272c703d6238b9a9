package nftables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Compare returns what Plan says where the kernel holds one State exactly, without
// clients that keep endpoints, and is to hold another of the same family. It needs no kernel.
func Compare(before, after *policy.State) ([]proxier.Change, error) {
	if err := layout.CheckHost(&after.Host); err != nil {
		return nil, fmt.Errorf("nftables, %s: %w", after.Family, err)
	}
	have := layout.Render(before)
	d := newDifference(layout.Render(after), have.Listing(), false)
	err := d.compareElements(func(e *layout.Edits) error {
		for el := range have.Records(e.Set).All() {
			e.See(&el)
		}
		return nil
	})
	return d.changes(), err
}

// changes returns the difference as Plan reports it.
func (d *difference) changes() (list []proxier.Change) {
	table, have := d.want.Keyword+" "+layout.TableName, cmp.Or(d.have, nft.NewListing())
	add := func(op, object, name string) {
		list = append(list, proxier.Change{Op: op, Object: object + " " + table + name})
	}
	switch {
	case d.have == nil:
		add("add", "table", "")
	case d.replace, d.wake:
		add("change", "table", "")
	}
	// Of those that there should be, in their order, then of those that should not be there.
	named := func(object string, want, have []string, same func(name string) bool) {
		for _, name := range want {
			if !slices.Contains(have, name) {
				add("add", object, " "+name)
			} else if !same(name) {
				add("change", object, " "+name)
			}
		}
		for _, name := range have {
			if !slices.Contains(want, name) {
				add("remove", object, " "+name)
			}
		}
	}
	var chains, sets []string
	for _, c := range d.want.Chains {
		chains = append(chains, c.Name)
	}
	for _, s := range d.sets {
		sets = append(sets, s.Name())
	}
	named("flowtable", slices.Sorted(maps.Keys(d.target.Flowtables)), slices.Sorted(maps.Keys(have.Flowtables)),
		func(name string) bool { return d.target.Flowtables[name].Equal(have.Flowtables[name]) })
	named("chain", chains, slices.Sorted(maps.Keys(have.Chains)),
		func(name string) bool { return d.target.SameChain(have, name) })
	named("set", sets, slices.Sorted(maps.Keys(have.Sets)), d.hasSet)
	for _, s := range d.sets {
		d.elementChanges(s, func(op string, e nft.Element) {
			add(op, "element", " "+s.Name()+" { "+layout.ElementText(s, d.want.Fam, e)+" }")
		})
	}
	return list
}

// elementChanges calls do with each element that is added, changed or removed.
func (d *difference) elementChanges(s layout.Set, do func(op string, e nft.Element)) {
	edits := d.elements[s]
	if edits == nil {
		return
	}
	for e := range edits.Removed() {
		do("remove", e)
	}
	for e := range edits.Changed() {
		do("change", e)
	}
	for e := range edits.Added() {
		do("add", e)
	}
}
