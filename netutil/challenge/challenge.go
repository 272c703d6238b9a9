// Package challenge has the clients of TCP connections that connection tracking has lost notice.
package challenge

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Connection is one of TCP.
type Connection struct {
	Client, Server netip.AddrPort // as the client sees them
}

// Send has the clients of connections send a packet, even if they
// only wait: in the name of the address that a client is connected to, it sends a SYN-ACK,
// which every client in the middle of a connection answers by telling where it stands,
// whatever the sequence number (RFC 5961, section 4). That answer is new to the rules, and
// leads to a reset. Connection tracking, to which a SYN-ACK without a SYN is invalid, makes
// no entry of it. A client that no longer exists answers with a reset.
//
// All are of one family. It goes on past errors, and returns the first. It needs CAP_NET_RAW.
func Send(ipv6 bool, list []Connection) (err error) {
	if len(list) == 0 {
		return nil
	}
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // with headers of our own
	if err != nil {
		return fmt.Errorf("opening a raw socket: %w", err)
	}
	defer unix.Close(fd)
	for _, c := range list {
		if sendErr := unix.Sendto(fd, synAck(c), unix.MSG_DONTWAIT, sockaddr(c.Client.Addr())); sendErr != nil && err == nil {
			err = fmt.Errorf("asking %s where its connection to %s stands: %w", c.Client, c.Server, sendErr)
		}
	}
	return err
}

// sockaddr returns an address without a port: a raw socket has none.
func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

const (
	tcpLen   = 20 // of headers without options
	ipv4Len  = 20
	ipv6Len  = 40
	tcpFlags = 0x12 // SYN, ACK
	hops     = 64
)

// synAck returns a packet from where a client is connected to.
func synAck(c Connection) []byte {
	tcp := make([]byte, tcpLen)
	binary.BigEndian.PutUint16(tcp, c.Server.Port())
	binary.BigEndian.PutUint16(tcp[2:], c.Client.Port())
	tcp[12], tcp[13] = tcpLen/4<<4, tcpFlags
	from, to := c.Server.Addr().AsSlice(), c.Client.Addr().AsSlice()
	binary.BigEndian.PutUint16(tcp[16:], checksum(from, to, []byte{0, unix.IPPROTO_TCP, 0, tcpLen}, tcp))
	return append(ipHeader(from, to), tcp...)
}

// ipHeader returns the header of a packet of TCP. Of IPv4, the kernel fills in the checksum and
// the identification.
func ipHeader(from, to []byte) []byte {
	if len(from) == 4 {
		h := make([]byte, ipv4Len-len(from)-len(to), ipv4Len+tcpLen)
		h[0], h[3], h[8], h[9] = 4<<4|ipv4Len/4, ipv4Len+tcpLen, hops, unix.IPPROTO_TCP
		return append(append(h, from...), to...)
	}
	h := make([]byte, ipv6Len-len(from)-len(to), ipv6Len+tcpLen)
	h[0], h[5], h[6], h[7] = 6<<4, tcpLen, unix.IPPROTO_TCP, hops
	return append(append(h, from...), to...)
}

// checksum returns that of RFC 1071 over parts of even lengths.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, p := range parts {
		for i := 0; i < len(p); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(p[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
