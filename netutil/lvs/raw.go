package lvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Commands and attributes of messages, <linux/ip_vs.h>. Those of tunnels are there since Linux 5.3, counters of 64 bits
// since 4.1.
const (
	cmdGetServer      = 4
	cmdNewDestination = 5
	cmdSetDestination = 6
	cmdGetDestination = 8

	attrServer      = 1 // of a message
	attrDestination = 2

	serverFamily   = 1
	serverProtocol = 2
	serverAddr     = 3
	serverPort     = 4
	serverEngine   = 11

	destinationAddr        = 1
	destinationPort        = 2
	destinationMethod      = 3
	destinationWeight      = 4
	destinationUpper       = 5
	destinationLower       = 6
	destinationActive      = 7
	destinationInactive    = 8
	destinationStats64     = 12
	destinationTunnelType  = 13
	destinationTunnelPort  = 14
	destinationTunnelFlags = 15 // checksums

	statsConnections = 1
	statsPacketsIn   = 2
	statsPacketsOut  = 3
	statsBytesIn     = 4
	statsBytesOut    = 5
)

// request sends a message about a virtual server, and returns the part of each reply that is of a type.
func request(raw *nl.SocketHandle, cmd uint8, flags int, k Key, typ uint16, more ...nl.NetlinkRequestData) ([][]byte, error) {
	family.Lock()
	id := family.id
	family.Unlock()
	req := nl.NewNetlinkRequest(int(id), flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: raw}
	req.AddData(&nl.Genlmsg{Command: cmd, Version: 1})
	server := nl.NewRtAttr(attrServer, nil)
	server.AddRtAttr(serverFamily, nl.Uint16Attr(k.service().AddressFamily))
	server.AddRtAttr(serverProtocol, nl.Uint16Attr(uint16(k.Protocol)))
	server.AddRtAttr(serverAddr, k.Addr.AsSlice())
	server.AddRtAttr(serverPort, bigEndian(k.Port))
	req.AddData(server)
	for _, m := range more {
		req.AddData(m)
	}
	replies, err := req.Execute(unix.NETLINK_GENERIC, 0)
	list := make([][]byte, len(replies))
	for i, r := range replies {
		list[i] = nlmsg.Find(r[min(len(r), nl.SizeofGenlmsg):], typ)
	}
	return list, err
}

// readEngine sets ForeignOptions of a persistent server that has a persistence engine (ipvsadm --pe).
func (c *Conn) readEngine(ctx context.Context, s *Server) error {
	if s.Persistence == 0 {
		return nil
	}
	list, err := request(c.raw, cmdGetServer, 0, s.Key, attrServer)
	if len(list) == 1 && nlmsg.Find(list[0], serverEngine) != nil {
		s.ForeignOptions = true
	}
	return wrap(ignoreNotExist(keyError(c.found(ctx, err))), "looking for the persistence engine of %v", s.Key)
}

// writeTunnel adds or changes a destination whose tunnel has a type.
func writeTunnel(raw *nl.SocketHandle, cmd uint8, k Key, d Destination) error {
	dest := nl.NewRtAttr(attrDestination, nil)
	dest.AddRtAttr(destinationAddr, d.Addr().AsSlice())
	dest.AddRtAttr(destinationPort, bigEndian(d.Port()))
	dest.AddRtAttr(destinationMethod, nl.Uint32Attr(uint32(Tunnel)))
	dest.AddRtAttr(destinationWeight, nl.Uint32Attr(d.Weight))
	dest.AddRtAttr(destinationUpper, nl.Uint32Attr(d.Limits.Upper))
	dest.AddRtAttr(destinationLower, nl.Uint32Attr(d.Limits.Lower))
	dest.AddRtAttr(destinationTunnelType, nl.Uint8Attr(uint8(d.Forwarding.Type)))
	dest.AddRtAttr(destinationTunnelPort, bigEndian(d.Forwarding.Port))
	dest.AddRtAttr(destinationTunnelFlags, nl.Uint16Attr(0))
	_, err := request(raw, cmd, unix.NLM_F_ACK, k, 0, dest)
	return err
}

func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// readTunnels completes destinations, all of a server, by what their tunnels are.
func (c *Conn) readTunnels(ctx context.Context, k Key, list []Destination) error {
	replies, err := request(c.raw, cmdGetDestination, unix.NLM_F_DUMP, k, attrDestination)
	if err != nil {
		return keyError(c.found(ctx, err))
	}
	tunnels := make(map[netip.AddrPort][]byte, len(replies))
	for _, a := range replies {
		tunnels[destinationAt(a, k)] = a
	}
	for i := range list {
		d := &list[i]
		if a := tunnels[d.AddrPort]; d.Forwarding.Method == Tunnel {
			way := &d.Forwarding
			way.Type, way.Port = TunnelType(nlmsg.Uint8(nlmsg.Find(a, destinationTunnelType))), nlmsg.Uint16(nlmsg.Find(a, destinationTunnelPort))
			d.ForeignOptions = way.Type > GRE || (way.Type == GUE) != (way.Port != 0) || nlmsg.NativeUint16(nlmsg.Find(a, destinationTunnelFlags)) != 0
		}
	}
	return nil
}

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
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	replies, err := request(c.raw, cmdGetDestination, unix.NLM_F_DUMP, k, attrDestination)
	if err = keyError(c.found(ctx, err)); errors.Is(err, ErrNoServer) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading counters of %v: %w", k, err)
	}
	list := make([]Counters, len(replies))
	for i, a := range replies {
		stat := func(typ uint16) uint64 { return nlmsg.NativeUint64(nlmsg.Find(a, destinationStats64, typ)) }
		list[i] = Counters{
			AddrPort:    destinationAt(a, k),
			Active:      nlmsg.NativeUint32(nlmsg.Find(a, destinationActive)),
			Inactive:    nlmsg.NativeUint32(nlmsg.Find(a, destinationInactive)),
			Connections: stat(statsConnections),
			Packets:     stat(statsPacketsIn) + stat(statsPacketsOut),
			Bytes:       stat(statsBytesIn) + stat(statsBytesOut),
		}
	}
	return list, nil
}

// destinationAt decodes the address of a destination of k: of union nf_inet_addr, IPv4 uses the first four of 16 bytes.
func destinationAt(a []byte, k Key) netip.AddrPort {
	b := nlmsg.Find(a, destinationAddr)
	if k.Addr.Is4() && len(b) > 4 {
		b = b[:4]
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip, nlmsg.Uint16(nlmsg.Find(a, destinationPort)))
}
