package policy

import (
	"cmp"
	"encoding/binary"
	"net/netip"
)

// An address is a netip.Addr without zone that is not IPv4-mapped, in 16 of its 24 bytes and without a pointer: a State has
// one for each endpoint of each pool.
type address struct{ high, low uint64 }

func addressOf(a netip.Addr) address {
	b := a.As16()
	return address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

// Addr returns the address.
func (a address) Addr() netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], a.high)
	binary.BigEndian.PutUint64(b[8:], a.low)
	return netip.AddrFrom16(b).Unmap()
}

// compare orders addresses of one family.
func (a address) compare(b address) int {
	return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
}
