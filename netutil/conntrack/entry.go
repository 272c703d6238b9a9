package conntrack

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Connection is an entry of connection tracking, of any protocol that has ports.
type Connection struct {
	Protocol       uint8          // by its IANA number
	Src, Dst       netip.AddrPort // as the client sent its first packet
	Reply, ReplyTo netip.AddrPort // of replies: from the endpoint, or from Dst without translation, and where to

	Translated  bool // a rule translated Dst; IPVS leaves no sign of that it does
	Replied     bool
	Established bool // it was answered and, of TCP, is established
	Ended       bool // of TCP and SCTP: closed on both sides, only remembered

	// In both directions. 0 unless net.netfilter.nf_conntrack_acct was 1 when it began.
	Packets, Bytes uint64
}

// An entry is a Connection with what else we need of it.
type entry struct {
	Connection
	status uint32 // IPS_*, <linux/netfilter/nf_conntrack_common.h>
	info   []byte // CTA_PROTOINFO; nil: none
	mark   uint32
	late   bool          // it is for late answers only, see Move
	zoned  bool          // one direction or both are in a zone
	names  [3]nlmsg.Attr // the attributes that identify it, as received; some may be missing
}

// Bits of the status of an entry, IPS_*.
const (
	seenReply             = 1 << 1
	confirmed             = 1 << 3
	destinationTranslated = 1 << 5
	fixedTimeout          = 1 << 10
	offloaded             = 1 << 14 // packets pass a flow table, and the kernel does not say the state
)

// States of connections, <linux/netfilter/nf_conntrack_tcp.h> and nf_conntrack_sctp.h. In the last three of TCP and both of
// SCTP a connection is only remembered.
const (
	tcpSynRecv         = 2
	tcpEstablished     = 3
	tcpLastAck         = 6
	tcpTimeWait        = 7
	tcpClose           = 8
	sctpClosed         = 1
	sctpShutdownAcking = 7
)

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
			e.Protocol = nlmsg.Uint8(nlmsg.Find(a.Value(), tupleProto, protoNumber))
			e.Src, e.Dst = decodeTuple(a.Value())
			zone := nlmsg.Find(a.Value(), tupleZone)
			e.late, e.zoned = nlmsg.Uint16(zone) == lateZone, e.zoned || zone != nil
		case attrReply:
			e.Reply, e.ReplyTo = decodeTuple(a.Value())
			e.zoned = e.zoned || nlmsg.Find(a.Value(), tupleZone) != nil
			e.names[0] = a
		case attrStatus:
			e.status = nlmsg.Uint32(a.Value())
		case attrInfo:
			e.info = a.Value()
		case attrMark:
			e.mark = nlmsg.Uint32(a.Value())
		case attrOrigCounters, attrReplyCounters:
			e.Packets += nlmsg.Uint64(nlmsg.Find(a.Value(), countersPackets))
			e.Bytes += nlmsg.Uint64(nlmsg.Find(a.Value(), countersBytes))
		case attrZone:
			e.zoned = true
			e.names[1] = a
		case attrID:
			e.names[2] = a
		}
	}
	e.conclude()
	return nil
}

// conclude sets what follows from the status and the state.
func (e *entry) conclude() {
	e.Replied = e.status&seenReply != 0
	e.Translated = e.status&destinationTranslated != 0 && e.Dst != e.Reply
	e.Established = e.Replied && (e.Protocol != unix.IPPROTO_TCP || e.tcpState() == tcpEstablished || e.status&offloaded != 0)
	switch e.tcpState() {
	case tcpLastAck, tcpTimeWait, tcpClose:
		e.Ended = true
	default:
		state := nlmsg.Uint8(nlmsg.Find(e.info, infoSCTP, infoState))
		e.Ended = state == sctpClosed || state == sctpShutdownAcking
	}
}

// decodeTuple decodes one direction of a flow.
func decodeTuple(b []byte) (src, dst netip.AddrPort) {
	return netip.AddrPortFrom(addr(b, addrsSrc4, addrsSrc6), nlmsg.Uint16(nlmsg.Find(b, tupleProto, protoSrc))),
		netip.AddrPortFrom(addr(b, addrsDst4, addrsDst6), nlmsg.Uint16(nlmsg.Find(b, tupleProto, protoDst)))
}

// addr returns the address of a tuple that is of one of two types, by family.
func addr(tuple []byte, v4, v6 uint16) netip.Addr {
	a, ok := netip.AddrFromSlice(nlmsg.Find(tuple, tupleAddrs, v4))
	if !ok {
		a, _ = netip.AddrFromSlice(nlmsg.Find(tuple, tupleAddrs, v6))
	}
	return a
}

// tcpState returns the state of a TCP connection, 0 where the kernel does not say.
func (e *entry) tcpState() uint8 { return nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoState)) }

// reopens reports whether the first SYN after the end of a connection starts a new one.
func (e *entry) reopens() bool {
	flags := nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoTCPFlags)) | nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoTCPReplyFlags))
	return flags&closeInit != 0
}

// movable reports whether Move can be done.
func (e *entry) movable() bool {
	return e.Protocol == unix.IPPROTO_UDP && e.status&destinationTranslated != 0 && !e.zoned
}
