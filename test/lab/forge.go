package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Forger sends first packets of TCP connections with sources that no host of
// the lab has, as an attacker does who wants to fill tables.
type Forger struct {
	fd4, fd6 int
}

// NewForger opens sockets on a host.
func NewForger(from *Host) (*Forger, error) {
	f := &Forger{fd4: -1, fd6: -1}
	err := from.Do(func() (err error) {
		if f.fd4, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW); err != nil {
			return err
		}
		f.fd6, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening a raw socket on %s: %w", from.Role, err), f.Close())
	}
	return f, nil
}

// Close closes the sockets.
func (f *Forger) Close() error {
	var errs []error
	for _, fd := range []int{f.fd4, f.fd6} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// SYN sends one. It waits while the sender's queue is full.
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

// Unreachable sends an ICMP error about a packet of a connection that nobody has: from a host
// that it was addressed to, to the one that sent it.
func (f *Forger) Unreachable(from, to netip.AddrPort) error {
	about := tcpPacket(to, from, flagSYN)
	if from.Addr().Is6() {
		icmp := append([]byte{1, 3, 0, 0, 0, 0, 0, 0}, about...) // address unreachable
		seal(icmp[2:], from.Addr(), to.Addr(), unix.IPPROTO_ICMPV6, icmp)
		return f.send(ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_ICMPV6, icmp), from, to.Addr())
	}
	about[2], about[3] = 0, byte(len(about)) // the kernel fills in the outer header only
	binary.BigEndian.PutUint16(about[10:], checksum(0, about[:ipv4Header]))
	icmp := append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, about[:ipv4Header+8]...) // host unreachable
	binary.BigEndian.PutUint16(icmp[2:], checksum(0, icmp))
	return f.send(ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_ICMP, icmp), from, to.Addr())
}

func (f *Forger) send(p []byte, from netip.AddrPort, to netip.Addr) (err error) {
	if to.Is6() {
		err = unix.Sendto(f.fd6, p, 0, &unix.SockaddrInet6{Addr: to.As16()})
	} else {
		err = unix.Sendto(f.fd4, p, 0, &unix.SockaddrInet4{Addr: to.As4()})
	}
	if err != nil {
		return fmt.Errorf("forging a packet from %s: %w", from, err)
	}
	return nil
}

// Sizes of headers without options, in bytes.
const (
	ipv4Header = 20
	ipv6Header = 40
	tcpHeader  = 20
)

// ipPacket returns a packet. The kernel writes the length and checksum of an IPv4 header, raw(7).
func ipPacket(from, to netip.Addr, protocol byte, payload []byte) []byte {
	if from.Is6() {
		p := make([]byte, ipv6Header)
		p[0], p[5], p[6], p[7] = 6<<4, byte(len(payload)), protocol, 64
		copy(p[8:], from.AsSlice())
		copy(p[24:], to.AsSlice())
		return append(p, payload...)
	}
	p := make([]byte, ipv4Header)
	p[0], p[8], p[9] = 4<<4|ipv4Header/4, 64, protocol
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	return append(p, payload...)
}

// tcpPacket returns a packet with a TCP segment.
func tcpPacket(from, to netip.AddrPort, flags byte) []byte {
	tcp := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(tcp[0:], from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], 1) // sequence number
	tcp[12], tcp[13] = tcpHeader/4<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 65535) // window
	seal(tcp[16:], from.Addr(), to.Addr(), unix.IPPROTO_TCP, tcp)
	return ipPacket(from.Addr(), to.Addr(), unix.IPPROTO_TCP, tcp)
}

// seal writes the checksum of a payload with its pseudo header, RFC 9293 section 3.1 and RFC 8200 section 8.1.
func seal(at []byte, from, to netip.Addr, protocol uint32, payload []byte) {
	binary.BigEndian.PutUint16(at, checksum(protocol+uint32(len(payload)), from.AsSlice(), to.AsSlice(), payload))
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
