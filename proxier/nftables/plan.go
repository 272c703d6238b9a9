package nftables

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// changes returns the difference as Plan reports it.
func (d *difference) changes() []proxier.Change {
	var list []proxier.Change
	table := d.want.keyword + " " + tableName
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
	for _, s := range setsInUse(d.counts) {
		d.elementChanges(s, func(op string, e nft.Element) {
			add(op, "element "+table+" "+s.name()+" { "+elementText(s, d.want.fam, e)+" }")
		})
	}
	return list
}

func (d *difference) chainChanges(add func(op, name string)) {
	nameChanges(d.chains, d.listing().Chains, func(c *kernelChain) string { return c.Name }, d.sameChain, add)
}

func (d *difference) flowChanges(add func(op, name string)) {
	var want []*nft.Flowtable
	if d.want.flows != nil {
		want = append(want, d.want.flows)
	}
	have := d.listing().Flowtables
	same := func(f *nft.Flowtable) bool { return f.Equal(have[f.Name]) }
	nameChanges(want, have, func(f *nft.Flowtable) string { return f.Name }, same, add)
}

// elementChanges calls do with each element that is added, changed or removed.
func (d *difference) elementChanges(s set, do func(op string, e nft.Element)) {
	if s.isDynamic() {
		d.ticketChanges(s, do)
		return
	}
	e := d.edits(s)
	for _, part := range []struct {
		op       string
		elements iter.Seq[nft.Element]
	}{{"remove", e.removed}, {"change", e.changed}, {"add", e.added}} {
		if part.elements == nil {
			continue
		}
		for e := range part.elements {
			do(part.op, e)
		}
	}
}

func (d *difference) ticketChanges(s set, do func(op string, e nft.Element)) {
	if s.kind != tickets {
		return
	}
	for _, e := range d.staleTickets {
		do("remove", e)
	}
}

// Text returns what our table holds of a State, a line for each element and rule,
// as nft would take and print it. Chains and sets are in order of their names.
func Text(st *policy.State) []string {
	c := render(dialects[st.Family], st)
	table := c.keyword + " " + tableName
	var lines []string
	for s, rec := range c.sets {
		for i := range rec.count() {
			lines = append(lines, fmt.Sprintf("add element %s %s { %s }", table, s.name(), elementText(s, c.fam, rec.element(i))))
		}
	}
	slices.Sort(lines)
	slices.SortStableFunc(c.chains, func(a, b *chain) int { return strings.Compare(a.Name, b.Name) })
	for _, ch := range c.chains {
		for _, r := range ch.rules {
			lines = append(lines, fmt.Sprintf("add rule %s %s %s", table, ch.Name, r))
		}
	}
	return lines
}

// elementText returns an element as nft prints it.
func elementText(s set, fam policy.Family, e nft.Element) string {
	key, data := s.fieldTypes(fam)
	words := fieldTexts(key, e.Key)
	if len(e.KeyEnd) > 0 {
		for i, end := range fieldTexts(key, e.KeyEnd) {
			if end != words[i] {
				words[i] = rangeText(words[i], end)
			}
		}
	}
	text := strings.Join(words, " . ")
	if e.Comment != "" {
		text += ` comment "` + e.Comment + `"`
	}
	if len(data) > 0 && len(e.Data) > 0 {
		text += " : " + strings.Join(fieldTexts(data, e.Data), " . ")
	}
	return text
}

// fieldTexts returns the content of registers, field by field.
func fieldTexts(types []nft.Type, b []byte) []string {
	words := make([]string, 0, len(types))
	for _, t := range types {
		n := int(t.Len+3) &^ 3
		if len(b) < n {
			return append(words, fmt.Sprintf("%x", b)) // of a foreign set
		}
		words = append(words, fieldText(t, b[:n]))
		b = b[n:]
	}
	return words
}

func fieldText(t nft.Type, b []byte) string {
	switch t {
	case nft.InetProto:
		return source.Protocol(b[0]).String()
	case nft.InetService:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case nft.Mark:
		return fmt.Sprintf("0x%08x", binary.NativeEndian.Uint32(b))
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// rangeText writes a range of addresses, as a prefix where it is one.
func rangeText(first, end string) string {
	a, errA := netip.ParseAddr(first)
	z, errZ := netip.ParseAddr(end)
	if errA != nil || errZ != nil {
		return first + "-" + end
	}
	for bits := range a.BitLen() + 1 {
		if p, err := a.Prefix(bits); err == nil && p.Addr() == a && lastAddr(p) == z {
			return p.String()
		}
	}
	return first + "-" + end
}
