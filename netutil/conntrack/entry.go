package conntrack

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
)

var errShort = errors.New("the kernel sent a truncated message")

// An entry has the parts of a conntrack entry that we need.
type entry struct {
	orig, reply tuple
	status      uint32    // IPS_*, <linux/netfilter/nf_conntrack_common.h>
	names       [4][]byte // the attributes that identify it, as received; some may be missing
}

// seenReply is IPS_SEEN_REPLY.
const seenReply = 1 << 1

// A tuple is one direction of a flow.
type tuple struct {
	src, dst netip.AddrPort
	proto    uint8
}

// nfgenLen is the length of struct nfgenmsg, <linux/netfilter/nfnetlink.h>.
const nfgenLen = 4

// decode decodes a message into e, which then refers to it.
func (e *entry) decode(b []byte) error {
	if len(b) < nfgenLen {
		return errShort
	}
	*e = entry{}
	for typ, a := range attributes(b[nfgenLen:]) {
		switch typ {
		case attrOrig:
			e.orig.decode(a.value())
			e.names[0] = a
		case attrReply:
			e.reply.decode(a.value())
			e.names[1] = a
		case attrStatus:
			if v := a.value(); len(v) == 4 {
				e.status = binary.BigEndian.Uint32(v)
			}
		case attrZone:
			e.names[2] = a
		case attrID:
			e.names[3] = a
		}
	}
	return nil
}

func (t *tuple) decode(b []byte) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	for typ, a := range attributes(b) {
		switch typ {
		case tupleAddrs:
			src, dst = decodeAddrs(a.value())
		case tupleProto:
			t.proto, srcPort, dstPort = decodeProto(a.value())
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
}

func decodeAddrs(b []byte) (src, dst netip.Addr) {
	for typ, a := range attributes(b) {
		switch typ {
		case addrsSrc4, addrsSrc6:
			src, _ = netip.AddrFromSlice(a.value())
		case addrsDst4, addrsDst6:
			dst, _ = netip.AddrFromSlice(a.value())
		}
	}
	return src, dst
}

func decodeProto(b []byte) (proto uint8, src, dst uint16) {
	for typ, a := range attributes(b) {
		switch v := a.value(); {
		case typ == protoNumber && len(v) == 1:
			proto = v[0]
		case typ == protoSrc && len(v) == 2:
			src = binary.BigEndian.Uint16(v)
		case typ == protoDst && len(v) == 2:
			dst = binary.BigEndian.Uint16(v)
		}
	}
	return proto, src, dst
}

// An attribute is a netlink attribute with its header.
type attribute []byte

// attributeHeader is the length of struct nlattr, <linux/netlink.h>.
const attributeHeader = 4

func (a attribute) value() []byte { return a[attributeHeader:] }

// attributes yields the attributes with their types, without the flags in these, up
// to one that does not fit.
func attributes(b []byte) iter.Seq2[uint16, attribute] {
	const flags = 0xc000
	return func(yield func(uint16, attribute) bool) {
		for len(b) >= attributeHeader {
			size := int(binary.NativeEndian.Uint16(b))
			if size < attributeHeader || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^flags, b[:size:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// align rounds up to the beginning of the next message or attribute.
func align(n int) int { return (n + 3) &^ 3 }
