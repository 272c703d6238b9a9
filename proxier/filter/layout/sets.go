package layout

import (
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A member is an entry of a set; its name is without the family's suffix.
type member struct {
	set string
	ipset.Entry
}

// A memberCount counts the frontends that need a member: a node port and an
// external address can have the same address, port and protocol.
type memberCount map[member]int

func (c memberCount) add(m member, n int) {
	if c[m] += n; c[m] == 0 {
		delete(c, m)
	}
}

// refusalSets returns the set that refuses the packets of f that are not balanced, if
// there are any; those that are never reach it with f's address.
func refusalSets(f *policy.Frontend) []string {
	switch f.Refusal() {
	case policy.Reject:
		return []string{rejectSet}
	case policy.Drop:
		return []string{dropSet}
	}
	return nil
}

// halves returns p, or two halves of the prefix of length 0, which sets cannot hold.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p.Masked()}
	}
	upper := p.Addr().AsSlice()
	clear(upper)
	lower, _ := netip.AddrFromSlice(upper)
	upper[0] = 0x80
	half, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(lower, 1), netip.PrefixFrom(half, 1)}
}

func addrEntry(a netip.Addr) ipset.Entry { return ipset.Entry{Addr: a} }

func hairpinEntry(h policy.Hairpin) ipset.Entry {
	at := h.AddrPort()
	return ipset.Entry{
		Addr: at.Addr(), Protocol: uint8(h.Protocol), Port: at.Port(),
		Net: netip.PrefixFrom(at.Addr(), at.Addr().BitLen()),
	}
}

// Members are the contents of a set.
type Members struct {
	Type    ipset.Type
	Entries map[ipset.Entry]struct{}
}
