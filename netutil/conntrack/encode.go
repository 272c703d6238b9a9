package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/ti-mo/netfilter"
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
	attrID            = 12
	attrDestNAT       = 13
	attrZone          = 18
	attrMask          = 21 // of the mark
	attrFilter        = 25 // since Linux 5.8; older kernels ignore it and send everything
	attrStatusMask    = 26 // since Linux 5.15; the same

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

	infoTCP           = 1 // of the protocol's
	infoSCTP          = 3
	infoState         = 1 // of either
	infoTCPFlags      = 4 // of the client's direction
	infoTCPReplyFlags = 5

	filterOrig  = 1 // of a filter: which parts of the original tuple must be equal
	filterReply = 2 // the same of the tuple of replies
)

func nest(typ uint16, parts ...netfilter.Attribute) netfilter.Attribute {
	return netfilter.Attribute{Type: typ, Nested: true, Children: parts}
}

func part(typ uint16, data ...byte) netfilter.Attribute {
	return netfilter.Attribute{Type: typ, Data: data}
}

// Numbers of messages are big-endian.
func number16(typ, n uint16) netfilter.Attribute { return part(typ, netfilter.Uint16Bytes(n)...) }

func number32(typ uint16, n uint32) netfilter.Attribute {
	return part(typ, netfilter.Uint32Bytes(n)...)
}

// encode returns a message of parts that always can be encoded.
func encode(parts ...netfilter.Attribute) []byte {
	b, err := netfilter.MarshalAttributes(parts)
	if err != nil {
		panic(err)
	}
	return b
}

// encodeTuple returns one direction of a flow. What is zero is left out, except for ports.
func encodeTuple(typ uint16, protocol uint8, src, dst netip.AddrPort, zone uint16) netfilter.Attribute {
	addrs := []netfilter.Attribute{}
	for _, a := range []struct {
		addr   netip.Addr
		v4, v6 uint16
	}{{src.Addr(), addrsSrc4, addrsSrc6}, {dst.Addr(), addrsDst4, addrsDst6}} {
		switch {
		case a.addr.Is4():
			addrs = append(addrs, part(a.v4, a.addr.AsSlice()...))
		case a.addr.IsValid():
			addrs = append(addrs, part(a.v6, a.addr.AsSlice()...))
		}
	}
	parts := []netfilter.Attribute{nest(tupleAddrs, addrs...)}
	if protocol != 0 {
		parts = append(parts, nest(tupleProto, part(protoNumber, protocol), number16(protoSrc, src.Port()), number16(protoDst, dst.Port())))
	}
	if zone != 0 {
		parts = append(parts, number16(tupleZone, zone))
	}
	return nest(typ, parts...)
}

// encodeNAT returns a translation to an address and port.
func encodeNAT(typ uint16, to netip.AddrPort) netfilter.Attribute {
	first, last := uint16(natMin4), uint16(natMax4)
	if to.Addr().Is6() {
		first, last = natMin6, natMax6
	}
	addr := to.Addr().AsSlice()
	return nest(typ, part(first, addr...), part(last, addr...), nest(natPorts, number16(natPortMin, to.Port()), number16(natPortMax, to.Port())))
}

// The parts of a tuple that must be equal, net/netfilter/nf_internals.h.
const (
	equalSrcAddr  = 1 << 0
	equalDstAddr  = 1 << 1
	equalProtocol = 1 << 3
	equalSrcPort  = 1 << 4
	equalDstPort  = 1 << 5
)

// encodeEqual returns which parts of a tuple must be equal, in the host's order: those that are not zero.
func encodeEqual(typ uint16, protocol uint8, src, dst netip.AddrPort) netfilter.Attribute {
	var equal uint32
	for _, c := range []struct {
		is   bool
		flag uint32
	}{
		{protocol != 0, equalProtocol}, {src.Addr().IsValid(), equalSrcAddr}, {dst.Addr().IsValid(), equalDstAddr},
		{src.Port() != 0, equalSrcPort}, {dst.Port() != 0, equalDstPort},
	} {
		if c.is {
			equal |= c.flag
		}
	}
	return part(typ, binary.NativeEndian.AppendUint32(nil, equal)...)
}
