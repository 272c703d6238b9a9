package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
)

// Attributes of a conntrack message, <linux/netfilter/nfnetlink_conntrack.h>.
const (
	attrOrig          = 1
	attrReply         = 2
	attrStatus        = 3
	attrInfo          = 4 // of the protocol
	attrSourceNAT     = 6 // how the source is translated
	attrTimeout       = 7
	attrMark          = 8
	attrOrigCounters  = 9
	attrReplyCounters = 10

	attrID      = 12
	attrDestNAT = 13
	attrZone    = 18
	attrMask    = 21 // of the mark
	attrFilter  = 25 // since Linux 5.8; older kernels ignore it and send everything

	attrStatusMask = 26 // since Linux 5.15; the same

	tupleAddrs = 1 // of a tuple
	tupleProto = 2
	tupleZone  = 3 // of one direction

	natMin4  = 1 // of a translation
	natMax4  = 2
	natPorts = 3
	natMin6  = 4
	natMax6  = 5

	natPortMin = 1 // of its ports
	natPortMax = 2

	addrsSrc4 = 1 // of a tuple's addresses
	addrsDst4 = 2
	addrsSrc6 = 3
	addrsDst6 = 4

	protoNumber = 1 // of a tuple's protocol
	protoSrc    = 2
	protoDst    = 3

	countersPackets = 1 // of the counters of a direction
	countersBytes   = 2

	infoTCP   = 1 // of the protocol's
	infoSCTP  = 3
	infoState = 1 // of either

	infoTCPFlags      = 4 // of the client's direction
	infoTCPReplyFlags = 5

	filterOrig  = 1 // of a filter: which parts of the original tuple must be equal
	filterReply = 2 // the same of the tuple of replies
)

// The parts of a tuple that must be equal, net/netfilter/nf_internals.h.
const (
	equalSrcAddr  = 1 << 0
	equalDstAddr  = 1 << 1
	equalProtocol = 1 << 3
	equalSrcPort  = 1 << 4
	equalDstPort  = 1 << 5
)

// The kernel walks through the whole table for each filter, so up to maxWalks filters by address are used, and
// above that, or where the table has few entries, one for the protocol. A walk takes as long as sending
// walkEntries entries, or longer: 15 ms of CPU on Linux 6.18 through the 262,144 places of an empty table.
const (
	maxWalks    = 4
	walkEntries = 10_000
)

// A filter selects the entries of one walk: those of a protocol whose tuples have these
// addresses and ports, unless they are zero. The zero filter selects everything.
type filter struct {
	protocol uint8
	src, dst netip.AddrPort // of the original tuple
	at       netip.AddrPort // the source of replies

	translated bool       // in place of the others: those whose destination was translated
	replies    netip.Addr // the same: those whose replies come from there
}

// filtersFor returns filters that cover everything that q selects, for a table with as many entries.
func (q Query) filtersFor(entries uint32) []filter {
	list := q.filters()
	if spared := len(list) - 1; spared > 0 && int(entries) <= spared*walkEntries {
		return []filter{{protocol: q.number()}}
	}
	return list
}

// filters returns filters that cover everything that q selects, for a table with many entries.
func (q Query) filters() []filter {
	proto := filter{protocol: q.number()}
	var list []filter
	add := func(f filter) {
		if !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	for _, a := range q.To {
		add(proto.to(a))
	}
	for _, a := range q.From {
		add(proto.from(a))
	}
	if n := len(q.At); n > 0 && (n < len(list) || len(list) == 0) {
		list = nil
		for _, a := range q.At {
			add(proto.answeredBy(a))
		}
	}
	if len(list) == 0 || len(list) > maxWalks {
		return []filter{proto}
	}
	return list
}

func (f filter) to(a netip.AddrPort) filter         { f.dst = filterable(a); return f }
func (f filter) from(a netip.AddrPort) filter       { f.src = filterable(a); return f }
func (f filter) answeredBy(a netip.AddrPort) filter { f.at = filterable(a); return f }

// filterable drops an IPv6 address and keeps the port: the kernel, still in 6.18,
// inverts the comparison (ctnetlink_filter_match_tuple,
// net/netfilter/nf_conntrack_netlink.c).
func filterable(a netip.AddrPort) netip.AddrPort {
	if a.Addr().Is4() {
		return a
	}
	return netip.AddrPortFrom(netip.Addr{}, a.Port())
}

// matches reports whether f selects e.
func (f filter) matches(e *entry) bool {
	return (f.protocol == 0 || e.orig.proto == f.protocol) &&
		matchesAddr(f.src, e.orig.src) && matchesAddr(f.dst, e.orig.dst) && matchesAddr(f.at, e.reply.src)
}

func matchesAddr(want, a netip.AddrPort) bool {
	return (!want.Addr().IsValid() || want.Addr() == a.Addr()) && (want.Port() == 0 || want.Port() == a.Port())
}

// encode returns the attributes of f.
func (f filter) encode() ([]byte, error) {
	if f.translated {
		return encodeTranslated()
	}
	if f.replies.IsValid() {
		return encodeReplies(f.replies)
	}
	if f.protocol == 0 {
		return nil, nil
	}
	e := netlink.NewAttributeEncoder()
	e.Nested(attrFilter, func(e *netlink.AttributeEncoder) error {
		e.Uint32(filterOrig, equal(f.src, f.dst))
		if f.at.IsValid() || f.at.Port() != 0 {
			e.Uint32(filterReply, equal(f.at, netip.AddrPort{}))
		}
		return nil
	})
	e.Nested(attrOrig, f.tuple(f.src, f.dst))
	if f.at.IsValid() || f.at.Port() != 0 {
		e.Nested(attrReply, f.tuple(f.at, netip.AddrPort{}))
	}
	return e.Encode()
}

// equal returns which parts of a tuple must be equal.
func equal(src, dst netip.AddrPort) uint32 {
	equal := uint32(equalProtocol)
	for _, c := range []struct {
		a          netip.AddrPort
		addr, port uint32
	}{{src, equalSrcAddr, equalSrcPort}, {dst, equalDstAddr, equalDstPort}} {
		if c.a.Addr().IsValid() {
			equal |= c.addr
		}
		if c.a.Port() != 0 {
			equal |= c.port
		}
	}
	return equal
}

// tuple returns how to encode a tuple of f's protocol.
func (f filter) tuple(src, dst netip.AddrPort) func(*netlink.AttributeEncoder) error {
	return func(e *netlink.AttributeEncoder) error {
		e.Nested(tupleAddrs, func(e *netlink.AttributeEncoder) error {
			encodeAddr(e, src.Addr(), addrsSrc4, addrsSrc6)
			encodeAddr(e, dst.Addr(), addrsDst4, addrsDst6)
			return nil
		})
		e.Nested(tupleProto, func(e *netlink.AttributeEncoder) error {
			e.Uint8(protoNumber, f.protocol)
			e.Bytes(protoSrc, binary.BigEndian.AppendUint16(nil, src.Port()))
			e.Bytes(protoDst, binary.BigEndian.AppendUint16(nil, dst.Port()))
			return nil
		})
		return nil
	}
}

// encodeAddr encodes a valid address as one of two attributes, by family.
func encodeAddr(e *netlink.AttributeEncoder, a netip.Addr, v4, v6 uint16) {
	switch {
	case a.Is4():
		e.Bytes(v4, a.AsSlice())
	case a.IsValid():
		e.Bytes(v6, a.AsSlice())
	}
}
