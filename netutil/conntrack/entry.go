package conntrack

import (
	"net/netip"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// An entry has the parts of a conntrack entry that we need.
type entry struct {
	orig, reply tuple
	status      uint32 // IPS_*, <linux/netfilter/nf_conntrack_common.h>
	info        []byte // CTA_PROTOINFO; nil: none
	mark        uint32
	late        bool          // it is for late answers only, see Move
	zoned       bool          // one direction or both are in a zone
	counters    [2][]byte     // of both directions; nil: none
	names       [3]nlmsg.Attr // the attributes that identify it, as received; some may be missing
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
		return nlmsg.ErrTruncated
	}
	*e = entry{}
	for typ, a := range nlmsg.Attrs(b[nfgenLen:]) {
		switch typ {
		case attrOrig:
			e.orig.decode(a.Value())
			zone := nlmsg.Find(a.Value(), tupleZone)
			e.late, e.zoned = isLateZone(zone), e.zoned || zone != nil
		case attrReply:
			e.reply.decode(a.Value())
			e.zoned = e.zoned || nlmsg.Find(a.Value(), tupleZone) != nil
			e.names[0] = a
		case attrStatus:
			e.status = nlmsg.Uint32(a.Value())
		case attrInfo:
			e.info = a.Value()
		case attrMark:
			e.mark = nlmsg.Uint32(a.Value())
		case attrOrigCounters:
			e.counters[0] = a.Value()
		case attrReplyCounters:
			e.counters[1] = a.Value()
		case attrZone:
			e.zoned = true
			e.names[1] = a
		case attrID:
			e.names[2] = a
		}
	}
	return nil
}

func (t *tuple) decode(b []byte) {
	t.src = netip.AddrPortFrom(addr(b, addrsSrc4, addrsSrc6), nlmsg.Uint16(nlmsg.Find(b, tupleProto, protoSrc)))
	t.dst = netip.AddrPortFrom(addr(b, addrsDst4, addrsDst6), nlmsg.Uint16(nlmsg.Find(b, tupleProto, protoDst)))
	t.proto = nlmsg.Uint8(nlmsg.Find(b, tupleProto, protoNumber))
}

// addr returns the address of a tuple that is of one of two types, by family.
func addr(tuple []byte, v4, v6 uint16) netip.Addr {
	a, ok := netip.AddrFromSlice(nlmsg.Find(tuple, tupleAddrs, v4))
	if !ok {
		a, _ = netip.AddrFromSlice(nlmsg.Find(tuple, tupleAddrs, v6))
	}
	return a
}
