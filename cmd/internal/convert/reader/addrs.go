package reader

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/source"
)

// AddrRange reads an address, ADDRESS-LAST, ADDRESS-ADDRESS or ADDRESS/BITS, as keepalived does.
func (r *Result) AddrRange(text string) ([]netip.Addr, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return r.between(p.Masked().Addr(), lastOf(p))
	}
	from, to, isRange := strings.Cut(text, "-")
	first, err := netip.ParseAddr(from)
	if err != nil || first.Zone() != "" {
		return nil, fmt.Errorf("%s is no address", source.Excerpt(text))
	}
	if !isRange {
		return []netip.Addr{first}, r.Grow(1)
	}
	last, err := netip.ParseAddr(to)
	if err != nil {
		if last, err = endOfRange(first, to); err != nil {
			return nil, err
		}
	}
	return r.between(first, last)
}

// endOfRange puts a number in the place of the last part of an address.
func endOfRange(first netip.Addr, text string) (netip.Addr, error) {
	base, bits := 10, 8
	if first.Is6() {
		base, bits = 16, 16
	}
	n, err := strconv.ParseUint(text, base, bits)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s is no end of a range of addresses", source.Excerpt(text))
	}
	b := first.AsSlice()
	if first.Is4() {
		b[3] = byte(n)
	} else {
		binary.BigEndian.PutUint16(b[14:], uint16(n))
	}
	a, _ := netip.AddrFromSlice(b)
	return a, nil
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// maxRange is how many addresses a range may have.
const maxRange = 1024

// between lists the addresses from one to another.
func (r *Result) between(first, last netip.Addr) (list []netip.Addr, err error) {
	if first.Is4() != last.Is4() || last.Less(first) {
		return nil, fmt.Errorf("%s-%s is no range of addresses", first, last)
	}
	for a := first; a.IsValid() && !last.Less(a); a = a.Next() {
		if len(list) == maxRange {
			return nil, fmt.Errorf("the range from %s to %s has more than %d addresses; split it", first, last, maxRange)
		}
		list = append(list, a)
	}
	return list, r.Grow(len(list))
}
