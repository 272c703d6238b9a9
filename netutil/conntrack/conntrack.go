// Package conntrack removes UDP flows from the kernel's connection tracking.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ti-mo/conntrack"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// readBuffer is the size of the socket's receive buffer, in bytes. The kernel
// paces a dump by the reader, so this only saves wake-ups.
const readBuffer = 4 << 20

// A Flow is a UDP flow.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated
}

// PruneUDP looks at every UDP flow of a family once, in every zone, and removes
// each for which stale returns true. It returns how many it removed. A flow
// that is gone already is no error. When ctx ends it gives up at once, also in
// the middle of the dump.
func PruneUDP(ctx context.Context, ipv6 bool, stale func(Flow) bool) (int, error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return 0, fmt.Errorf("opening a conntrack socket: %w", err)
	}
	defer c.Close()
	// The library takes no context; closing its socket ends a wait for the kernel.
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetReadBuffer(readBuffer) // a smaller one works too

	flows, err := dump(c, ipv6)
	if err != nil {
		return 0, cause(ctx, fmt.Errorf("listing conntrack flows: %w", err))
	}
	return prune(ctx, c, flows, stale)
}

// dump lists the flows of a family. The kernel filters by neither protocol nor
// address, so this is everything.
func dump(c *conntrack.Conn, ipv6 bool) ([]conntrack.Flow, error) {
	family := netfilter.ProtoIPv4
	if ipv6 {
		family = netfilter.ProtoIPv6
	}
	return c.DumpFilter(conntrack.NewFilter().Family(family), nil)
}

// prune goes on past a flow that cannot be removed and returns the first such error.
func prune(ctx context.Context, c *conntrack.Conn, flows []conntrack.Flow, stale func(Flow) bool) (removed int, first error) {
	for i := range flows {
		if ctx.Err() != nil {
			return removed, ctx.Err()
		}
		f := &flows[i]
		if f.TupleOrig.Proto.Protocol != unix.IPPROTO_UDP || !stale(flowOf(f)) {
			continue
		}
		err := c.Delete(whole(f))
		switch {
		case err == nil:
			removed++
		case ctx.Err() != nil:
			return removed, ctx.Err()
		case !errors.Is(err, unix.ENOENT) && first == nil:
			first = fmt.Errorf("removing conntrack flow udp %v: %w", f.TupleOrig, err)
		}
	}
	return removed, first
}

func flowOf(f *conntrack.Flow) Flow {
	orig, reply := &f.TupleOrig, &f.TupleReply
	return Flow{
		Src:   netip.AddrPortFrom(orig.IP.SourceAddress, orig.Proto.SourcePort),
		Dst:   netip.AddrPortFrom(orig.IP.DestinationAddress, orig.Proto.DestinationPort),
		Reply: netip.AddrPortFrom(reply.IP.SourceAddress, reply.Proto.SourcePort),
	}
}

// whole returns what names f: both tuples and the zone, and nothing else that
// the kernel could take exception to.
func whole(f *conntrack.Flow) conntrack.Flow {
	return conntrack.Flow{Zone: f.Zone, TupleOrig: f.TupleOrig, TupleReply: f.TupleReply}
}

// cause returns ctx's error in place of what closing the socket gave.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
