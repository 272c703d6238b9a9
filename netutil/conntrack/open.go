package conntrack

import (
	"context"
	"net/netip"

	"github.com/mdlayher/netlink"
)

// Open calls visit with every connection of a family whose packets go to another address or
// port than they were sent to, and that has been answered and has not ended: one of TCP or
// SCTP also while only one side has closed it. to is where they go, every port of it; an
// address that is not valid: anywhere. When ctx ends it stops at once.
//
// The kernel leaves out those that go elsewhere for IPv4, since Linux 5.8: with 250,000
// entries it then takes 0.06 s of CPU, and else as long as Established.
func Open(ctx context.Context, ipv6 bool, to netip.Addr, visit func(Connection)) error {
	each := func(e *entry) error {
		if e.open() && (!to.IsValid() || e.reply.src.Addr() == to) {
			visit(Connection{Protocol: e.orig.proto, Dst: e.orig.dst, Reply: e.reply.src})
		}
		return ctx.Err()
	}
	f := filter{replies: to}
	if ipv6 {
		f = filter{} // see filterable
	}
	return withSocket(ctx, func(s *socket) error {
		err := s.list(family(ipv6), f, each)
		if filterRejected(err) {
			err = s.list(family(ipv6), filter{}, each)
		}
		return err
	})
}

// open reports whether a connection is answered, goes elsewhere, and has not ended. IPVS
// translates too, without a sign in the status.
func (e *entry) open() bool {
	return e.status&seenReply != 0 && e.orig.dst != e.reply.src && !e.ended()
}

// encodeReplies encodes a filter by the source of replies, which must be of IPv4.
func encodeReplies(to netip.Addr) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrFilter, func(e *netlink.AttributeEncoder) error {
		e.Uint32(filterReply, equalSrcAddr)
		return nil
	})
	e.Nested(attrReply, func(e *netlink.AttributeEncoder) error {
		e.Nested(tupleAddrs, func(e *netlink.AttributeEncoder) error {
			e.Bytes(addrsSrc4, to.AsSlice())
			return nil
		})
		return nil
	})
	return e.Encode()
}
