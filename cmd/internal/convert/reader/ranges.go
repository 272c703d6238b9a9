package reader

import (
	"net/netip"
	"slices"
)

// A Ranges is a set of addresses of either family: spans in order, with a gap between each and the next.
type Ranges []span

// A span is all addresses from one to another of its family.
type span struct{ first, last netip.Addr }

// AllAddrs is every address.
var AllAddrs = Ranges{spanOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), spanOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))}

func spanOf(p netip.Prefix) span { return span{p.Masked().Addr(), lastOf(p)} }

// RangesOf returns the addresses of prefixes.
func RangesOf(list ...netip.Prefix) Ranges {
	var out Ranges
	for _, p := range list {
		out = append(out, spanOf(p))
	}
	return out.tidy()
}

// tidy puts spans in order and makes one of those that meet.
func (r Ranges) tidy() (out Ranges) {
	slices.SortFunc(r, func(a, b span) int { return a.first.Compare(b.first) })
	for _, s := range r {
		if n := len(out) - 1; n >= 0 && (!out[n].last.Less(s.first) || out[n].last.Next() == s.first) {
			if out[n].last.Less(s.last) {
				out[n].last = s.last
			}
			continue
		}
		out = append(out, s)
	}
	return out
}

// Union returns the addresses that are in any of some sets.
func Union(sets ...Ranges) Ranges { return slices.Concat(sets...).tidy() }

// Not returns the addresses that are not in a set.
func (r Ranges) Not() (out Ranges) {
	for _, all := range AllAddrs {
		next := all.first
		for _, s := range r {
			if s.first.Is4() != all.first.Is4() {
				continue
			}
			if next.IsValid() && next.Less(s.first) {
				out = append(out, span{next, s.first.Prev()})
			}
			next = s.last.Next() // invalid behind the last address
		}
		if next.IsValid() {
			out = append(out, span{next, all.last})
		}
	}
	return out
}

// And returns the addresses that are in both sets.
func (r Ranges) And(o Ranges) Ranges { return Union(r.Not(), o.Not()).Not() }

// Equal reports whether two sets have the same addresses.
func (r Ranges) Equal(o Ranges) bool { return slices.Equal(r, o) }

// Prefixes returns the fewest prefixes that have the addresses of a set.
func (r Ranges) Prefixes() (out []netip.Prefix) {
	for _, s := range r {
		for a := s.first; a.IsValid() && !s.last.Less(a); {
			p := netip.PrefixFrom(a, a.BitLen())
			for p.Bits() > 0 {
				wider := netip.PrefixFrom(a, p.Bits()-1)
				if wider.Masked().Addr() != a || s.last.Less(lastOf(wider)) {
					break
				}
				p = wider
			}
			out = append(out, p)
			a = lastOf(p).Next()
		}
	}
	return out
}
