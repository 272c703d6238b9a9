package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
	"svcproxy/source"
)

// elementText returns an element as nft prints it.
func elementText(s set, fam proxier.Family, e nft.Element) string {
	key, data := s.layout(fam)
	words := fields(key, e.Key)
	if len(e.KeyEnd) > 0 {
		for i, end := range fields(key, e.KeyEnd) {
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
		text += " : " + strings.Join(fields(data, e.Data), " . ")
	}
	return text
}

// fields returns what is in registers, field by field.
func fields(types []nft.Type, b []byte) []string {
	words := make([]string, 0, len(types))
	for _, t := range types {
		n := int(t.Len+3) &^ 3
		if len(b) < n {
			return append(words, fmt.Sprintf("%x", b)) // of a set that somebody made
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
		if p, err := a.Prefix(bits); err == nil && p.Addr() == a && last(p) == z {
			return p.String()
		}
	}
	return first + "-" + end
}

// Text returns what our table holds of a State, a line for each element and rule,
// as nft would take and print it. Chains and sets are in order of their names.
func Text(st *proxier.State) []string {
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
