package reader

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestRanges(t *testing.T) {
	of := func(texts ...string) Ranges {
		var list []netip.Prefix
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return RangesOf(list...)
	}
	for _, tt := range []struct {
		name string
		got  Ranges
		want string
	}{
		{"in order, and one of two halves", of("10.0.1.0/24", "2001:db8::/32", "10.0.0.0/24", "10.0.0.7/32"), "[10.0.0.0/23 2001:db8::/32]"},
		{"not", of("0.0.0.0/1", "::/0").Not(), "[128.0.0.0/1]"},
		{"not of nothing", Ranges(nil).Not(), "[0.0.0.0/0 ::/0]"},
		{"not of all", AllAddrs.Not(), "[]"},
		{"not of the last address", of("255.255.255.255/32", "0.0.0.0/2").Not().Not(), "[0.0.0.0/2 255.255.255.255/32]"},
		{"and", of("10.0.0.0/8", "192.0.2.0/24").And(of("10.128.0.0/9", "192.0.2.128/26", "2001:db8::/32")), "[10.128.0.0/9 192.0.2.128/26]"},
		{"or", Union(of("10.0.0.0/9"), of("10.128.0.0/9", "::/1"), nil), "[10.0.0.0/8 ::/1]"},
		{"families do not meet", of("255.0.0.0/8", "::/8"), "[255.0.0.0/8 ::/8]"},
	} {
		if got := fmt.Sprint(tt.got.Prefixes()); got != tt.want {
			t.Errorf("%s: got %s; want %s", tt.name, got, tt.want)
		}
	}
}
