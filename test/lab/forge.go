package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Forger sends first packets of TCP connections with sources that no host of
// the lab has, as an attacker does who wants to fill tables.
type Forger struct {
	fd int
}

// NewForger opens a socket on a host.
func NewForger(from *Host) (*Forger, error) {
	f := new(Forger)
	err := from.Do(func() (err error) {
		f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a raw socket on %s: %w", from.Role, err)
	}
	return f, nil
}

// Close closes the socket.
func (f *Forger) Close() error { return unix.Close(f.fd) }

// SYN sends one, IPv4. It waits while the sender's queue is full.
func (f *Forger) SYN(from, to netip.AddrPort) error {
	return f.Segment(from, to, flagSYN)
}

// Flags of TCP segments, RFC 9293.
const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// Segment is SYN with other flags.
func (f *Forger) Segment(from, to netip.AddrPort, flags byte) error {
	return f.send(tcpPacket(from, to, flags), from, to.Addr())
}

// Unreachable sends an ICMP error, IPv4, about a packet of a connection that nobody has: from a host
// that it was addressed to, to the one that sent it.
func (f *Forger) Unreachable(from, to netip.AddrPort) error {
	about := tcpPacket(to, from, flagSYN)
	about[2], about[3] = 0, byte(len(about)) // the kernel fills in the outer header only
	binary.BigEndian.PutUint16(about[10:], checksum(0, about[:ipv4Header]))
	p := append(ipv4Packet(from.Addr(), to.Addr(), unix.IPPROTO_ICMP), 3, 1, 0, 0, 0, 0, 0, 0) // host unreachable
	p = append(p, about[:ipv4Header+8]...)
	binary.BigEndian.PutUint16(p[ipv4Header+2:], checksum(0, p[ipv4Header:]))
	return f.send(p, from, to.Addr())
}

func (f *Forger) send(p []byte, from netip.AddrPort, to netip.Addr) error {
	if err := unix.Sendto(f.fd, p, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		return fmt.Errorf("forging a packet from %s: %w", from, err)
	}
	return nil
}

// Sizes of headers without options, in bytes.
const (
	ipv4Header = 20
	tcpHeader  = 20
)

// ipv4Packet returns the header of an IPv4 packet. The kernel writes its length and checksum, raw(7).
func ipv4Packet(from, to netip.Addr, protocol byte) []byte {
	p := make([]byte, ipv4Header)
	p[0], p[8], p[9] = 4<<4|ipv4Header/4, 64, protocol
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	return p
}

// tcpPacket returns an IPv4 packet with a TCP segment.
func tcpPacket(from, to netip.AddrPort, flags byte) []byte {
	p := append(ipv4Packet(from.Addr(), to.Addr(), unix.IPPROTO_TCP), make([]byte, tcpHeader)...)
	src, dst := from.Addr().As4(), to.Addr().As4()
	tcp := p[ipv4Header:]
	binary.BigEndian.PutUint16(tcp[0:], from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], 1) // sequence number
	tcp[12], tcp[13] = tcpHeader/4<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535) // window
	binary.BigEndian.PutUint16(tcp[16:], tcpChecksum(src, dst, tcp))
	return p
}

// tcpChecksum is that of a segment with its pseudo header, RFC 9293.
func tcpChecksum(src, dst [4]byte, segment []byte) uint16 {
	return checksum(uint32(unix.IPPROTO_TCP)+uint32(len(segment)), src[:], dst[:], segment)
}

// checksum is that of the Internet, RFC 1071, of parts of an even length.
func checksum(sum uint32, parts ...[]byte) uint16 {
	for _, b := range parts {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
