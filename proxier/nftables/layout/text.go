package layout

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// ElementText returns an element as nft prints it.
func ElementText(s Set, fam policy.Family, e nft.Element) string {
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
