package nftables

import (
	"iter"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// changes returns the difference as Plan reports it.
func (d *difference) changes() []proxier.Change {
	var list []proxier.Change
	table := d.want.Keyword + " " + layout.TableName
	add := func(op, object string) { list = append(list, proxier.Change{Op: op, Object: object}) }
	switch {
	case d.have == nil:
		add("add", "table "+table)
	case d.replace, d.wake:
		add("change", "table "+table)
	}
	d.flowChanges(func(op, name string) { add(op, "flowtable "+table+" "+name) })
	d.chainChanges(func(op, name string) { add(op, "chain "+table+" "+name) })
	d.setChanges(func(op, name string) { add(op, "set "+table+" "+name) })
	for _, s := range layout.SetsInUse(d.counts) {
		d.elementChanges(s, func(op string, e nft.Element) {
			add(op, "element "+table+" "+s.Name()+" { "+layout.ElementText(s, d.want.Fam, e)+" }")
		})
	}
	return list
}

func (d *difference) chainChanges(add func(op, name string)) {
	nameChanges(d.want.Chains, d.listing().Chains, func(c *layout.Chain) string { return c.Name }, d.sameChain, add)
}

func (d *difference) flowChanges(add func(op, name string)) {
	var want []*nft.Flowtable
	if d.want.Flowtable != nil {
		want = append(want, d.want.Flowtable)
	}
	have := d.listing().Flowtables
	same := func(f *nft.Flowtable) bool { return f.Equal(have[f.Name]) }
	nameChanges(want, have, func(f *nft.Flowtable) string { return f.Name }, same, add)
}

// elementChanges calls do with each element that is added, changed or removed.
func (d *difference) elementChanges(s layout.Set, do func(op string, e nft.Element)) {
	if s.IsDynamic() {
		d.ticketChanges(s, do)
		return
	}
	e := d.edits(s)
	for _, part := range []struct {
		op       string
		elements iter.Seq[nft.Element]
	}{{"remove", e.Removed}, {"change", e.Changed}, {"add", e.Added}} {
		if part.elements == nil {
			continue
		}
		for e := range part.elements {
			do(part.op, e)
		}
	}
}

func (d *difference) ticketChanges(s layout.Set, do func(op string, e nft.Element)) {
	if s != layout.Tickets {
		return
	}
	for _, e := range d.staleTickets {
		do("remove", e)
	}
}
