package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Verdict says what becomes of an entry. The zero Verdict, Keep, leaves it as it is.
type Verdict uint8

const (
	Keep Verdict = iota

	// Remove deletes the entry. The next packet of the flow is new to the rules.
	Remove

	// Move is Remove, but answers that are under way still find their way back to the client, for
	// LateAnswers: the kernel gets a second entry in which the client's direction lies in a zone
	// that no packet is in, so that only answers match it. It needs NF_CONNTRACK_ZONES, and
	// a flow of UDP that a rule translates, outside of any zone; else it is Remove.
	Move

	// Reopen keeps a connection of TCP, and has the first SYN after its end start a new one. The
	// kernel does so by itself after a FIN, but lets a SYN join the entry of a connection
	// that the server has reset, and renew it: such a client never gets away from a server that has
	// gone. Linux tells the two apart by a flag (nf_conntrack_tcp_packet,
	// net/netfilter/nf_conntrack_proto_tcp.c), which this sets, and which means nothing else.
	Reopen
)

// RemoveIf returns Remove for what is stale, and else Keep.
func RemoveIf(stale bool) Verdict {
	if stale {
		return Remove
	}
	return Keep
}

// LateAnswers is for how long answers under way are translated after Move, in seconds: after as many a
// resolver asks again, resolv.conf(5).
const LateAnswers = 5

// edits returns how to carry out v.
func (v Verdict) edits(e *entry) []edit {
	switch v {
	case Remove:
		return []edit{removal}
	case Move:
		if e.movable() {
			return []edit{removal, e.lateEntry()}
		}
		return []edit{removal}
	case Reopen:
		if e.orig.proto == unix.IPPROTO_TCP && !e.reopens() {
			return []edit{reopening}
		}
	}
	return nil
}

var (
	removal   = edit{verb: "removing", typ: deleteEntry, counted: true}
	reopening = edit{verb: "reopening", typ: changeEntry, attrs: reopenAttrs()}
)

// closeInit is IP_CT_TCP_FLAG_CLOSE_INIT, <linux/netfilter/nf_conntrack_tcp.h>.
const closeInit = 0x04

// reopenAttrs has the flag for one direction; either will do. The state is left out, and stays.
func reopenAttrs() []byte {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrInfo, func(e *netlink.AttributeEncoder) error {
		e.Nested(infoTCP, func(e *netlink.AttributeEncoder) error {
			e.Bytes(infoTCPFlags, []byte{closeInit, closeInit}) // flags, mask
			return nil
		})
		return nil
	})
	return must(e.Encode())
}

// must returns what was encoded from values that always can be.
func must(attrs []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return attrs
}

// reopens reports whether the first SYN after the end of a connection starts a new one.
func (e *entry) reopens() bool {
	flags := nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoTCPFlags)) | nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoTCPReplyFlags))
	return flags&closeInit != 0
}

// lateZone is the zone of the client's direction in entries for late answers: "svcp" on
// the keys of a telephone. Entries in it are left out of what this package lists.
const lateZone = 7827

func isLateZone(zone []byte) bool { return nlmsg.Uint16(zone) == lateZone }

// Bits of the status of an entry, IPS_*.
const (
	confirmed    = 1 << 3
	fixedTimeout = 1 << 10
)

// movable reports whether Move can be done.
func (e *entry) movable() bool {
	return e.orig.proto == unix.IPPROTO_UDP && e.status&destinationTranslated != 0 && !e.zoned
}

// lateEntry returns how to make an entry for the answers to e that are under way.
func (e *entry) lateEntry() edit {
	a := netlink.NewAttributeEncoder()
	a.ByteOrder = binary.BigEndian
	a.Nested(attrOrig, encodeTuple(e.orig.src, e.orig.dst, e.orig.proto, lateZone))
	a.Nested(attrReply, encodeTuple(e.orig.dst, e.orig.src, e.orig.proto, 0))
	a.Nested(attrDestNAT, encodeNAT(e.reply.src))
	if e.reply.dst != e.orig.src {
		a.Nested(attrSourceNAT, encodeNAT(e.reply.dst))
	}
	a.Uint32(attrStatus, seenReply|confirmed|fixedTimeout)
	a.Uint32(attrTimeout, LateAnswers)
	a.Uint32(attrMark, e.mark)
	return edit{
		verb: "replacing", typ: changeEntry, flags: netlink.Create | netlink.Excl,
		attrs: must(a.Encode()), other: true, maybe: true,
	}
}

// encodeTuple returns how to encode a direction of a flow; zone 0: in none.
func encodeTuple(src, dst netip.AddrPort, protocol uint8, zone uint16) func(*netlink.AttributeEncoder) error {
	return func(e *netlink.AttributeEncoder) error {
		e.ByteOrder = binary.BigEndian
		if err := (filter{protocol: protocol}).tuple(src, dst)(e); err != nil || zone == 0 {
			return err
		}
		e.Uint16(tupleZone, zone)
		return nil
	}
}

// encodeNAT returns how to encode a translation to an address and port.
func encodeNAT(to netip.AddrPort) func(*netlink.AttributeEncoder) error {
	first, last := uint16(natMin4), uint16(natMax4)
	if to.Addr().Is6() {
		first, last = natMin6, natMax6
	}
	return func(e *netlink.AttributeEncoder) error {
		e.ByteOrder = binary.BigEndian
		e.Bytes(first, to.Addr().AsSlice())
		e.Bytes(last, to.Addr().AsSlice())
		e.Nested(natPorts, func(e *netlink.AttributeEncoder) error {
			e.ByteOrder = binary.BigEndian
			e.Uint16(natPortMin, to.Port())
			e.Uint16(natPortMax, to.Port())
			return nil
		})
		return nil
	}
}
