package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	reading, err := openSocket()
	if err != nil {
		return 0, fmt.Errorf("opening a conntrack socket: %w", err)
	}
	defer reading.Close()
	writing, err := openSocket()
	if err != nil {
		return 0, fmt.Errorf("opening a conntrack socket: %w", err)
	}
	defer writing.Close()
	// Reads take no context; closing the sockets interrupts them.
	defer context.AfterFunc(ctx, func() { reading.Close(); writing.Close() })()

	marking, err := markEdit(bit)
	if err != nil {
		return 0, err
	}
	w := editor{socket: writing, edit: marking, family: family(ipv6)}
	err = reading.list(family(ipv6), filter{}, func(e *entry) error {
		if !ours(Connection{Protocol: e.orig.proto, Dst: e.orig.dst, Reply: e.reply.src}) {
			return nil
		}
		return w.add(e)
	})
	if err == nil {
		err = w.flush()
	}
	if ctx.Err() != nil {
		return w.done, ctx.Err()
	}
	return w.done, errors.Join(err, w.failed)
}

func markEdit(bit uint32) (edit, error) {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.Uint32(attrMark, bit)
	e.Uint32(attrMask, bit)
	attrs, err := e.Encode()
	return edit{verb: "marking", typ: changeEntry, attrs: attrs}, err
}
