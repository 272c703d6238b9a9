package reader

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// A Ranges is a set of addresses of both families: sorted spans that neither overlap nor touch.
type Ranges []span

// A span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// AllAddrs is every address.
var AllAddrs = Ranges{spanOf(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), spanOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))}

func spanOf(p netip.Prefix) span {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return span{p.Masked().Addr(), last}
}

// RangesOf returns the addresses of prefixes.
func RangesOf(list ...netip.Prefix) Ranges {
	var out Ranges
	for _, p := range list {
		out = append(out, spanOf(p))
	}
	return Union(out)
}

// Union returns the union of sets.
func Union(sets ...Ranges) (out Ranges) {
	all := slices.Concat(sets...)
	slices.SortFunc(all, func(a, b span) int { return a.first.Compare(b.first) })
	for _, s := range all {
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
				if of := spanOf(wider); of.first != a || s.last.Less(of.last) {
					break
				}
				p = wider
			}
			out = append(out, p)
			a = spanOf(p).last.Next()
		}
	}
	return out
}

// Sources returns the set as source_ranges of a service: no range if the set has all addresses, and a range that matches no
// client if the set is empty.
func (r Ranges) Sources() []netip.Prefix {
	switch {
	case r.Equal(AllAddrs):
		return nil
	case len(r) == 0:
		return []netip.Prefix{NoSource}
	}
	return r.Prefixes()
}

// NoSource is a range that lets no client in, where an empty list lets everyone in: an address of the discard prefix,
// RFC 6666.
var NoSource = netip.MustParsePrefix("100::/128")

// maxRange is how many addresses a range may have.
const maxRange = 1024

// AddrRange reads an address, ADDRESS-LAST, ADDRESS-ADDRESS or ADDRESS/BITS, as keepalived does.
func (r *Result) AddrRange(text string) (list []netip.Addr, err error) {
	s, err := spanFrom(text)
	if err != nil {
		return nil, err
	}
	if s.first.Is4() != s.last.Is4() || s.last.Less(s.first) {
		return nil, fmt.Errorf("%s-%s is no range of addresses", s.first, s.last)
	}
	for a := s.first; a.IsValid() && !s.last.Less(a); a = a.Next() {
		if len(list) == maxRange {
			return nil, fmt.Errorf("the range from %s to %s has more than %d addresses; split it", s.first, s.last, maxRange)
		}
		list = append(list, a)
	}
	r.Grow(len(list))
	return list, nil
}

func spanFrom(text string) (span, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return spanOf(p), nil
	}
	from, to, isRange := strings.Cut(text, "-")
	first, err := netip.ParseAddr(from)
	if err != nil || first.Zone() != "" {
		return span{}, fmt.Errorf("%s is no address", source.Excerpt(text))
	}
	if !isRange {
		return span{first, first}, nil
	}
	last, err := netip.ParseAddr(to)
	if err != nil { // the last part of one
		base, bits := 10, 8
		if first.Is6() {
			base, bits = 16, 16
		}
		n, numberErr := strconv.ParseUint(to, base, bits)
		last, err = netip.ParseAddr(from[:strings.LastIndexAny(from, ".:")+1] + strconv.FormatUint(n, base))
		if numberErr != nil || err != nil {
			return span{}, fmt.Errorf("%s is no end of a range of addresses", source.Excerpt(to))
		}
	}
	return span{first, last}, nil
}
