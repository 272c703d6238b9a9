package conntrack

import (
	"context"
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
)

// A Connection is an entry of any protocol that has ports.
type Connection struct {
	Protocol uint8          // IP protocol number
	Dst      netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // the source of replies: the endpoint, or Dst without translation
}

// Mark sets a bit in the mark of each connection of a family for which ours
// returns true, and returns how many have it now. The other bits are kept.
// A connection that has ended meanwhile is no error. It lists every entry.
func Mark(ctx context.Context, ipv6 bool, bit uint32, ours func(Connection) bool) (int, error) {
	marking, err := markEdit(bit)
	if err != nil {
		return 0, err
	}
	return editAll(ctx, ipv6, []filter{{}}, func(e *entry) []edit {
		if !ours(Connection{Protocol: e.orig.proto, Dst: e.orig.dst, Reply: e.reply.src}) {
			return nil
		}
		return []edit{marking}
	})
}

func markEdit(bit uint32) (edit, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(attrMark, bit)
	e.Uint32(attrMask, bit)
	attrs, err := e.Encode()
	return edit{verb: "marking", typ: changeEntry, attrs: attrs, counted: true}, err
}
