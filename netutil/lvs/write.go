package lvs

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// AddServer adds a virtual server, without destinations. The kernel loads the
// module of its scheduler.
func (c *Conn) AddServer(ctx context.Context, s Server) error {
	err := c.write(ctx, cmdNewServer, s.attributes())
	return wrap(serverError(err), "adding virtual server %v with scheduler %s", s.Key, s.Scheduler)
}

// UpdateServer changes a virtual server. Its destinations and connections stay.
func (c *Conn) UpdateServer(ctx context.Context, s Server) error {
	err := c.write(ctx, cmdSetServer, s.attributes())
	return wrap(serverError(err), "changing virtual server %v to scheduler %s", s.Key, s.Scheduler)
}

// DeleteServer removes a virtual server with its destinations, if it exists.
func (c *Conn) DeleteServer(ctx context.Context, k Key) error {
	err := c.write(ctx, cmdDeleteServer, k.attributes())
	return wrap(ignoreNotExist(keyError(err)), "removing virtual server %v", k)
}

// AddDestination adds a destination to a virtual server. Of d it takes what is to be set.
func (c *Conn) AddDestination(ctx context.Context, k Key, d Destination) error {
	err := newDestinationError(c.write(ctx, cmdNewDestination, k.destination(d)))
	if err == nil {
		err = c.hasTunnel(ctx, k, d)
	}
	return wrap(err, "adding destination %v to virtual server %v", d.AddrPort, k)
}

// UpdateDestination changes a destination. Its connections stay, and go on in the way in which
// they began. Of d it takes what is to be set.
func (c *Conn) UpdateDestination(ctx context.Context, k Key, d Destination) error {
	err := keyError(c.write(ctx, cmdSetDestination, k.destination(d)))
	if err == nil {
		err = c.hasTunnel(ctx, k, d)
	}
	return wrap(err, "changing destination %v of virtual server %v", d.AddrPort, k)
}

// DeleteDestination removes a destination, if it exists. Its connections end.
func (c *Conn) DeleteDestination(ctx context.Context, k Key, at netip.AddrPort) error {
	err := c.write(ctx, cmdDeleteDestination, k.destination(Destination{AddrPort: at}))
	return wrap(ignoreNotExist(keyError(err)), "removing destination %v from virtual server %v", at, k)
}

func ignoreNotExist(err error) error {
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}

// write sends a message that changes something, and waits for its acknowledgement.
func (c *Conn) write(ctx context.Context, cmd uint8, e *netlink.AttributeEncoder) error {
	c.Messages++
	_, err := c.command(ctx, cmd, netlink.Acknowledge, e)
	return err
}

// Timeouts returns those of the namespace.
func (c *Conn) Timeouts(ctx context.Context) (t Timeouts, err error) {
	replies, err := c.command(ctx, cmdGetTimeouts, 0, netlink.NewAttributeEncoder())
	for _, m := range replies {
		timeout := func(typ uint16) time.Duration {
			return time.Duration(nlmsg.NativeUint32(nlmsg.Find(m.Data, typ))) * time.Second
		}
		t = Timeouts{TCP: timeout(attrTimeoutTCP), TCPFin: timeout(attrTimeoutTCPFin), UDP: timeout(attrTimeoutUDP)}
	}
	return t, wrap(err, "reading timeouts")
}

// SetTimeouts sets those of the namespace, rounded up; 0 leaves one unchanged.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrTimeoutTCP, seconds(t.TCP))
	e.Uint32(attrTimeoutTCPFin, seconds(t.TCPFin))
	e.Uint32(attrTimeoutUDP, seconds(t.UDP))
	return wrap(c.write(ctx, cmdSetTimeouts, e), "setting timeouts")
}

func seconds(d time.Duration) uint32 { return uint32((d + time.Second - 1) / time.Second) }

// attributes encode a whole server.
func (s Server) attributes() *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrServer, func(e *netlink.AttributeEncoder) error {
		flags := uint32(s.Flags)
		if s.Persistence > 0 {
			flags |= flagPersistent
		}
		if s.OnePacket {
			flags |= flagOnePacket
		}
		e.String(serverScheduler, s.Scheduler)
		e.Bytes(serverFlags, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, flags), allFlags))
		e.Uint32(serverTimeout, s.Persistence)
		e.Uint32(serverNetmask, hostNetmask(s.Addr))
		return s.encode(e)
	})
	return e
}

// destination encodes a destination of the server k.
func (k Key) destination(d Destination) *netlink.AttributeEncoder {
	e := k.attributes()
	e.Nested(attrDestination, func(e *netlink.AttributeEncoder) error {
		e.Bytes(destinationAddr, d.Addr().AsSlice())
		e.Bytes(destinationPort, binary.BigEndian.AppendUint16(nil, d.Port()))
		d.Forwarding.encode(e)
		e.Uint32(destinationWeight, d.Weight)
		e.Uint32(destinationUpper, d.Limits.Upper)
		e.Uint32(destinationLower, d.Limits.Lower)
		return nil
	})
	return e
}
