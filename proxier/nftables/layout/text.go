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
	text := strings.Join(fieldTexts(key, e.Key), " . ")
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
