package lvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// genlHeader is the length of struct genlmsghdr, <linux/genetlink.h>.
const genlHeader = 4

// Commands and attributes, <linux/ip_vs.h>.
const (
	cmdNewServer         = 1
	cmdSetServer         = 2
	cmdDeleteServer      = 3
	cmdGetServer         = 4
	cmdNewDestination    = 5
	cmdSetDestination    = 6
	cmdDeleteDestination = 7
	cmdGetDestination    = 8
	cmdSetTimeouts       = 12
	cmdGetTimeouts       = 13

	attrServer        = 1 // of a message
	attrDestination   = 2
	attrTimeoutTCP    = 4
	attrTimeoutTCPFin = 5
	attrTimeoutUDP    = 6

	serverFamily    = 1 // of a server
	serverProtocol  = 2
	serverAddr      = 3
	serverPort      = 4
	serverMark      = 5
	serverScheduler = 6
	serverFlags     = 7 // flags and their mask
	serverTimeout   = 8
	serverNetmask   = 9
	serverEngine    = 11

	destinationAddr     = 1
	destinationPort     = 2
	destinationMethod   = 3
	destinationWeight   = 4
	destinationUpper    = 5
	destinationLower    = 6
	destinationActive   = 7
	destinationInactive = 8

	flagPersistent = 0x1
	flagHashed     = 0x2 // internal to the kernel
	flagOnePacket  = 0x4
	allFlags       = 0xffffffff
)

// List returns what Servers does, with the destinations.
func (c *Conn) List(ctx context.Context, v6 bool, known iter.Seq[Key]) (map[Key]Listing, error) {
	servers, err := c.Servers(ctx, v6, known)
	if err != nil {
		return nil, err
	}
	list := make(map[Key]Listing, len(servers))
	for key, s := range servers {
		dests, err := c.Destinations(ctx, key)
		if err != nil {
			return nil, err
		}
		list[key] = Listing{Server: s, Destinations: dests}
	}
	return list, nil
}

// Servers returns the virtual servers of one family, except those for a packet mark.
//
// The kernel lists in parts, and resumes by the number of servers, of all
// namespaces, that it has passed: if one is removed in between, even in another
// namespace, the list skips the next one. What is listed exists. So each known
// server that the list lacks is looked up on its own; others will be in a later list.
func (c *Conn) Servers(ctx context.Context, v6 bool, known iter.Seq[Key]) (map[Key]Server, error) {
	list, err := c.listServers(ctx, v6)
	if err != nil {
		return nil, fmt.Errorf("listing virtual servers: %w", err)
	}
	return list, c.complete(ctx, list, v6, known)
}

// complete adds the known servers that a list lacks.
func (c *Conn) complete(ctx context.Context, list map[Key]Server, v6 bool, known iter.Seq[Key]) error {
	for key := range known {
		if _, listed := list[key]; listed || key.Addr.Is6() != v6 {
			continue
		}
		s, err := c.Server(ctx, key)
		if errors.Is(err, ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		list[key] = s
	}
	return nil
}

// listServers lists the servers once.
func (c *Conn) listServers(ctx context.Context, v6 bool) (map[Key]Server, error) {
	replies, err := c.command(ctx, cmdGetServer, netlink.Dump, netlink.NewAttributeEncoder())
	if err != nil {
		return nil, err
	}
	list := make(map[Key]Server, len(replies))
	for _, m := range replies {
		s, ok, err := decodeServer(m.Data)
		if err != nil {
			return nil, err
		}
		if ok && s.Addr.Is6() == v6 {
			list[s.Key] = s
		}
	}
	return list, nil
}

// Server returns a virtual server, or ErrNotExist.
func (c *Conn) Server(ctx context.Context, k Key) (Server, error) {
	replies, err := c.command(ctx, cmdGetServer, 0, k.attributes())
	if err == nil && len(replies) != 1 {
		err = fmt.Errorf("%d replies", len(replies))
	}
	if err != nil {
		return Server{}, wrap(keyError(err), "looking for virtual server %v", k)
	}
	s, _, err := decodeServer(replies[0].Data)
	return s, wrap(err, "looking for virtual server %v", k)
}

// Has reports whether a virtual server exists.
func (c *Conn) Has(ctx context.Context, k Key) (bool, error) {
	_, err := c.Server(ctx, k)
	return err == nil, ignoreNotExist(err)
}

// attributes identify a virtual server in a request.
func (k Key) attributes() *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrServer, k.encode)
	return e
}

func (k Key) encode(e *netlink.AttributeEncoder) error {
	e.Uint16(serverFamily, familyOf(k.Addr))
	e.Uint16(serverProtocol, uint16(k.Protocol))
	e.Bytes(serverAddr, k.Addr.AsSlice())
	e.Bytes(serverPort, binary.BigEndian.AppendUint16(nil, k.Port))
	return nil
}

// Destinations returns those of one virtual server, in no order. A server that does
// not exist has none.
func (c *Conn) Destinations(ctx context.Context, k Key) ([]Destination, error) {
	replies, err := c.command(ctx, cmdGetDestination, netlink.Dump, k.attributes())
	if err != nil {
		return nil, fmt.Errorf("listing destinations of %v: %w", k, keyError(err))
	}
	list := make([]Destination, 0, len(replies))
	for _, m := range replies {
		d, err := decodeDestination(m.Data, k.Addr.Is4())
		if err != nil {
			return nil, fmt.Errorf("listing destinations of %v: %w", k, err)
		}
		list = append(list, d)
	}
	return list, nil
}

func familyOf(a netip.Addr) uint16 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// decodeServer decodes one virtual server; ok is false for one of a packet mark.
func decodeServer(data []byte) (s Server, ok bool, err error) {
	a := attributes(nlmsg.Find(data, attrServer))
	if a.uint32(serverMark) != 0 {
		return s, false, nil
	}
	flags := a.uint32(serverFlags) // its mask follows
	s = Server{
		Key: Key{
			Addr:     a.addr(serverAddr, a.uint16(serverFamily) == unix.AF_INET),
			Protocol: uint8(a.uint16(serverProtocol)),
			Port:     nlmsg.Uint16(a.find(serverPort)),
		},
		Scheduler:      nlmsg.String(a.find(serverScheduler)),
		Flags:          SchedulerFlags(flags & schedulerFlags),
		OnePacket:      flags&flagOnePacket != 0,
		ForeignOptions: flags&^(flagPersistent|flagHashed|flagOnePacket|schedulerFlags) != 0 || a.find(serverEngine) != nil,
	}
	if flags&flagPersistent != 0 {
		s.Persistence = a.uint32(serverTimeout)
		s.ForeignOptions = s.ForeignOptions || a.uint32(serverNetmask) != hostNetmask(s.Addr)
	}
	if !s.Addr.IsValid() {
		return s, false, errors.New("a virtual server without address")
	}
	return s, true, nil
}

// hostNetmask stands for persistence by single client addresses: a mask for IPv4, a
// prefix length for IPv6.
func hostNetmask(a netip.Addr) uint32 {
	if a.Is4() {
		return 0xffffffff
	}
	return 128
}

func decodeDestination(data []byte, v4 bool) (Destination, error) {
	a := attributes(nlmsg.Find(data, attrDestination))
	d := Destination{
		AddrPort: netip.AddrPortFrom(a.addr(destinationAddr, v4), nlmsg.Uint16(a.find(destinationPort))),
		Weight:   a.uint32(destinationWeight),
		Limits:   Limits{Upper: a.uint32(destinationUpper), Lower: a.uint32(destinationLower)},
		Active:   a.uint32(destinationActive),
		Inactive: a.uint32(destinationInactive),
	}
	forwarding, ours := forwardingOf(a)
	d.Forwarding, d.ForeignOptions = forwarding, !ours
	if !d.Addr().IsValid() {
		return d, errors.New("a destination without address")
	}
	return d, nil
}

// attributes are those of a virtual server or of a destination. Numbers but ports are
// in the host's order.
type attributes []byte

func (a attributes) find(typ uint16) []byte { return nlmsg.Find(a, typ) }

func (a attributes) uint16(typ uint16) uint16 { return nlmsg.NativeUint16(a.find(typ)) }

func (a attributes) uint32(typ uint16) uint32 { return nlmsg.NativeUint32(a.find(typ)) }

func (a attributes) uint64(typ uint16) uint64 { return nlmsg.NativeUint64(a.find(typ)) }

// addr decodes union nf_inet_addr: IPv4 uses the first four of its 16 bytes.
func (a attributes) addr(typ uint16, v4 bool) netip.Addr {
	b := a.find(typ)
	if v4 && len(b) > 4 {
		b = b[:4]
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
