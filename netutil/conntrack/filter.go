package conntrack

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Attributes of a conntrack message, <linux/netfilter/nfnetlink_conntrack.h>.
const (
	attrOrig          = 1
	attrReply         = 2
	attrStatus        = 3
	attrInfo          = 4 // of the protocol
	attrMark          = 8
	attrOrigCounters  = 9
	attrReplyCounters = 10

	attrID     = 12
	attrZone   = 18
	attrMask   = 21 // of the mark
	attrFilter = 25 // since Linux 5.8; older kernels ignore it and send everything

	attrStatusMask = 26 // since Linux 5.15; the same

	tupleAddrs = 1 // of a tuple
	tupleProto = 2

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

	filterOrig = 1 // of a filter: which parts of the original tuple must be equal
)

// The parts of a tuple that must be equal, net/netfilter/nf_internals.h.
const (
	equalSrcAddr  = 1 << 0
	equalDstAddr  = 1 << 1
	equalProtocol = 1 << 3
	equalSrcPort  = 1 << 4
	equalDstPort  = 1 << 5
)

// maxWalks is up to how many filters by address are used; above it, one for all UDP
// is: the kernel walks through the whole table for each filter.
const maxWalks = 4

// A filter selects the entries of one walk: those of UDP whose original tuple has
// these addresses and ports, unless they are zero. The zero filter selects everything.
type filter struct {
	udp      bool
	protocol uint8 // in place of UDP, unless it is zero
	src, dst netip.AddrPort

	translated bool       // in place of the others: those whose destination was translated
	to         netip.Addr // the same: those whose replies come from there
}

func (f filter) number() uint8 { return cmp.Or(f.protocol, unix.IPPROTO_UDP) }

// filters returns filters that cover everything that q selects.
func (q Query) filters() []filter {
	if q.all() {
		return []filter{{udp: true}}
	}
	var list []filter
	add := func(f filter) {
		if !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	for _, a := range q.To {
		add(filter{udp: true, dst: filterable(a)})
	}
	for _, a := range q.From {
		add(filter{udp: true, src: filterable(a)})
	}
	if len(list) > maxWalks {
		return []filter{{udp: true}}
	}
	return list
}

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
	return (!f.udp || e.orig.proto == f.number()) && matchesAddr(f.src, e.orig.src) && matchesAddr(f.dst, e.orig.dst)
}

func matchesAddr(want, a netip.AddrPort) bool {
	return (!want.Addr().IsValid() || want.Addr() == a.Addr()) && (want.Port() == 0 || want.Port() == a.Port())
}

// encode returns the attributes of f.
func (f filter) encode() ([]byte, error) {
	if f.translated {
		return encodeTranslated()
	}
	if f.to.IsValid() {
		return encodeTo(f.to)
	}
	if !f.udp {
		return nil, nil
	}
	e := netlink.NewAttributeEncoder()
	e.Nested(attrFilter, func(e *netlink.AttributeEncoder) error {
		e.Uint32(filterOrig, f.equal())
		return nil
	})
	e.Nested(attrOrig, func(e *netlink.AttributeEncoder) error {
		e.Nested(tupleAddrs, f.addrs)
		e.Nested(tupleProto, f.proto)
		return nil
	})
	return e.Encode()
}

// equal returns which parts must be equal.
func (f filter) equal() uint32 {
	equal := uint32(equalProtocol)
	for _, c := range []struct {
		a          netip.AddrPort
		addr, port uint32
	}{{f.src, equalSrcAddr, equalSrcPort}, {f.dst, equalDstAddr, equalDstPort}} {
		if c.a.Addr().IsValid() {
			equal |= c.addr
		}
		if c.a.Port() != 0 {
			equal |= c.port
		}
	}
	return equal
}

func (f filter) addrs(e *netlink.AttributeEncoder) error {
	if a := f.src.Addr(); a.IsValid() {
		e.Bytes(addrsSrc4, a.AsSlice())
	}
	if a := f.dst.Addr(); a.IsValid() {
		e.Bytes(addrsDst4, a.AsSlice())
	}
	return nil
}

func (f filter) proto(e *netlink.AttributeEncoder) error {
	e.Uint8(protoNumber, f.number())
	e.Bytes(protoSrc, binary.BigEndian.AppendUint16(nil, f.src.Port()))
	e.Bytes(protoDst, binary.BigEndian.AppendUint16(nil, f.dst.Port()))
	return nil
}
