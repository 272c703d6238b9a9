package lvs

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Method is how packets get to a destination, by its number in <linux/ip_vs.h>.
type Method uint8

// Masquerading rewrites their destination, and the source of the replies. Direct sends them as they
// are to the link-layer address of the destination, Tunnel in other packets: the destination has
// the address of the virtual server too, and replies to clients itself.
const (
	Masquerading Method = 0
	Tunnel       Method = 2
	Direct       Method = 3
)

// A TunnelType is what packets are wrapped in, by its number in <linux/ip_vs.h>.
type TunnelType uint8

// The types of a tunnel: IP in IP; generic UDP encapsulation and GRE since Linux 5.3.
const (
	IPIP TunnelType = 0
	GUE  TunnelType = 1
	GRE  TunnelType = 2
)

// A Forwarding is how packets get to a destination. The zero value is by masquerading.
type Forwarding struct {
	Method Method
	Type   TunnelType // of Tunnel
	Port   uint16     // UDP port of the destination, of GUE; not 0 there
}

// Text returns the words of ipvsadm for a destination of some weight that packets get to in this way.
func (f Forwarding) Text(weight uint32) string {
	method, more := "-m", ""
	switch {
	case f.Method == Direct:
		method = "-g"
	case f.Method == Tunnel && f.Type == IPIP:
		method, more = "-i", " --tun-type ipip"
	case f.Method == Tunnel && f.Type == GRE:
		method, more = "-i", " --tun-type gre --tun-nocsum"
	case f.Method == Tunnel:
		method, more = "-i", fmt.Sprintf(" --tun-type gue --tun-port %d --tun-nocsum", f.Port)
	}
	return fmt.Sprintf("%s -w %d%s", method, weight, more)
}

// Attributes of a destination, <linux/ip_vs.h>.
const (
	destinationTunnelType  = 13
	destinationTunnelPort  = 14
	destinationTunnelFlags = 15 // checksums
)

// encode adds the attributes of a destination.
func (f Forwarding) encode(e *netlink.AttributeEncoder) {
	e.Uint32(destinationMethod, uint32(f.Method))
	if f.Method != Tunnel {
		return
	}
	e.Uint8(destinationTunnelType, uint8(f.Type))
	e.Bytes(destinationTunnelPort, binary.BigEndian.AppendUint16(nil, f.Port))
	e.Uint16(destinationTunnelFlags, 0)
}

// forwardingOf decodes the attributes of a destination. It returns false for one that encode does
// not make.
func forwardingOf(a attributes) (f Forwarding, ours bool) {
	switch method := a.uint32(destinationMethod); method {
	case uint32(Masquerading), uint32(Direct):
		return Forwarding{Method: Method(method)}, true
	case uint32(Tunnel):
		f.Method = Tunnel
	default:
		return f, false
	}
	typ := a.find(destinationTunnelType) // none before Linux 5.3
	if len(typ) == 1 {
		f.Type = TunnelType(typ[0])
	}
	f.Port = nlmsg.Uint16(a.find(destinationTunnelPort))
	gue := f.Type == GUE
	return f, f.Type <= GRE && gue == (f.Port != 0) && a.uint16(destinationTunnelFlags) == 0
}

// hasTunnel returns ErrNoTunnel, after it has removed the destination, if the kernel made another
// tunnel of it: it ignores types that are newer than itself. One that it has made it can make again.
func (c *Conn) hasTunnel(ctx context.Context, k Key, d Destination) error {
	if d.Forwarding.Type == IPIP || c.tunnels[d.Forwarding.Type] {
		return nil
	}
	list, err := c.Destinations(ctx, k)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(l Destination) bool { return l.AddrPort == d.AddrPort && l.Forwarding == d.Forwarding }) {
		c.tunnels[d.Forwarding.Type] = true
		return nil
	}
	if err := c.DeleteDestination(ctx, k, d.AddrPort); err != nil {
		return err
	}
	return ErrNoTunnel
}
