package reader

import (
	"net/netip"
	"slices"
)

// A Ranges is a set of addresses of both families: sorted spans that neither overlap nor touch.
type Ranges []span

// A span is a range of addresses of one family, both ends included.
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

// tidy sorts spans and joins those that overlap or touch.
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

// Union returns the union of sets.
func Union(sets ...Ranges) Ranges { return slices.Concat(sets...).tidy() }

// Not returns the complement.
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

// And returns the intersection.
func (r Ranges) And(o Ranges) Ranges { return Union(r.Not(), o.Not()).Not() }

// Equal reports whether two sets are equal.
func (r Ranges) Equal(o Ranges) bool { return slices.Equal(r, o) }

// Prefixes returns the smallest list of prefixes that covers exactly the set.
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

// NoSource is a range of source_ranges that lets no client in, where an empty list lets everyone in: an address of the
// discard prefix, RFC 6666.
var NoSource = netip.MustParsePrefix("100::/128")
