package conntrack

import (
	"context"
	"errors"
	"net/netip"
)

// A Found is an entry with its addresses in both directions.
type Found struct {
	Src, Dst           netip.AddrPort // of the first packet
	ReplySrc, ReplyDst netip.AddrPort // of its replies
	Replied            bool           // there were any
}

var errEnough = errors.New("enough was found")

// Find returns the entries of a protocol whose first packet went from an address to an
// address and port, limit of them at most.
func Find(ctx context.Context, protocol uint8, src netip.Addr, dst netip.AddrPort, limit int) (list []Found, err error) {
	f := filter{protocol: protocol, src: netip.AddrPortFrom(src, 0), dst: dst}
	asked := f
	asked.src, asked.dst = filterable(f.src), filterable(f.dst)
	err = withSocket(ctx, func(s *socket) error {
		return s.walk(family(dst.Addr().Is6()), []filter{asked}, func(e *entry) error {
			if !f.matches(e) {
				return nil
			}
			if len(list) == limit {
				return errEnough
			}
			list = append(list, Found{e.orig.src, e.orig.dst, e.reply.src, e.reply.dst, e.status&seenReply != 0})
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list, err
}
