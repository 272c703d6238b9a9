package lvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Attributes of counters, <linux/ip_vs.h>. Those of 64 bits are there since Linux 4.1.
const (
	destinationStats64 = 12

	statsConnections = 1
	statsPacketsIn   = 2
	statsPacketsOut  = 3
	statsBytesIn     = 4
	statsBytesOut    = 5
)

// Counters are what the kernel has counted of a destination since it was added. They
// may lag by two seconds.
type Counters struct {
	netip.AddrPort
	Active         uint32 // connections of TCP and SCTP that are established; none of UDP
	Inactive       uint32 // others, those that are only remembered too
	Connections    uint64
	Packets, Bytes uint64 // in both directions
}

// Counters returns those of the destinations of one virtual server, in no order. A server
// that does not exist has none.
func (c *Conn) Counters(ctx context.Context, k Key) ([]Counters, error) {
	replies, err := c.command(ctx, cmdGetDestination, netlink.Dump, k.attributes())
	if err = keyError(err); errors.Is(err, ErrNoServer) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading counters of %v: %w", k, err)
	}
	list := make([]Counters, len(replies))
	for i, m := range replies {
		if err := list[i].decode(m.Data, k.Addr.Is4()); err != nil {
			return nil, fmt.Errorf("reading counters of %v: %w", k, err)
		}
	}
	return list, nil
}

func (c *Counters) decode(data []byte, v4 bool) error {
	a := attributes(nlmsg.Find(data, attrDestination))
	stats := attributes(a.find(destinationStats64))
	*c = Counters{
		AddrPort:    netip.AddrPortFrom(a.addr(destinationAddr, v4), nlmsg.Uint16(a.find(destinationPort))),
		Active:      a.uint32(destinationActive),
		Inactive:    a.uint32(destinationInactive),
		Connections: stats.uint64(statsConnections),
		Packets:     stats.uint64(statsPacketsIn) + stats.uint64(statsPacketsOut),
		Bytes:       stats.uint64(statsBytesIn) + stats.uint64(statsBytesOut),
	}
	if !c.Addr().IsValid() {
		return errors.New("a destination without address")
	}
	return nil
}
