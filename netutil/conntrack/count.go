package conntrack

import (
	"context"
	"encoding/binary"

	"github.com/mdlayher/netlink"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// destinationTranslated is IPS_DST_NAT, in the status of an entry.
const destinationTranslated = 1 << 5

// A Counted is a connection whose destination was translated, and what the kernel has
// counted of it.
type Counted struct {
	Connection
	Ended bool // of TCP and SCTP: closed on both sides, only remembered

	// In both directions. 0 unless net.netfilter.nf_conntrack_acct was 1 when it began.
	Packets, Bytes uint64
}

// Translated calls each with every connection of a family whose destination was
// translated to another address or port, as it is listed. When ctx ends it stops at
// once. The kernel leaves out the others where it can.
//
// With 250,000 entries on Linux 6.18 it takes 0.06 s of CPU where none is translated,
// and 0.3 s where all are.
func Translated(ctx context.Context, ipv6 bool, each func(Counted)) error {
	return withSocket(ctx, func(s *socket) error {
		return s.list(family(ipv6), filter{translated: true}, func(e *entry) error {
			if c, ok := e.counted(); ok {
				each(c)
			}
			return nil
		})
	})
}

// counted returns what is counted of e; ok is false if its destination was not translated.
func (e *entry) counted() (c Counted, ok bool) {
	if e.status&destinationTranslated == 0 || e.orig.dst == e.reply.src {
		return c, false
	}
	c.Connection = Connection{Protocol: e.orig.proto, Dst: e.orig.dst, Reply: e.reply.src}
	c.Ended = e.ended()
	for _, b := range e.counters {
		c.Packets += nlmsg.Uint64(nlmsg.Find(b, countersPackets))
		c.Bytes += nlmsg.Uint64(nlmsg.Find(b, countersBytes))
	}
	return c, true
}

// States in which a connection is only remembered,
// <linux/netfilter/nf_conntrack_tcp.h> and nf_conntrack_sctp.h.
const (
	tcpSynRecv         = 2
	tcpLastAck         = 6
	tcpTimeWait        = 7
	tcpClose           = 8
	sctpClosed         = 1
	sctpShutdownAcking = 7
)

// ended reports whether a connection is over.
func (e *entry) ended() bool {
	switch nlmsg.Uint8(nlmsg.Find(e.info, infoTCP, infoState)) {
	case tcpLastAck, tcpTimeWait, tcpClose:
		return true
	}
	state := nlmsg.Uint8(nlmsg.Find(e.info, infoSCTP, infoState))
	return state == sctpClosed || state == sctpShutdownAcking
}

// encodeTranslated encodes a filter by status, which the kernel has had since Linux 5.15.
func encodeTranslated() ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(attrStatus, destinationTranslated)
	e.Uint32(attrStatusMask, destinationTranslated)
	return e.Encode()
}
