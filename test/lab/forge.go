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
	if err := unix.Sendto(f.fd, synPacket(from, to), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		return fmt.Errorf("forging a SYN from %s: %w", from, err)
	}
	return nil
}

// Sizes of headers without options, in bytes.
const (
	ipv4Header = 20
	tcpHeader  = 20
)

// synPacket returns an IPv4 packet. The kernel writes its length and the checksum of its header, raw(7).
func synPacket(from, to netip.AddrPort) []byte {
	p := make([]byte, ipv4Header+tcpHeader)
	src, dst := from.Addr().As4(), to.Addr().As4()
	p[0], p[8], p[9] = 4<<4|ipv4Header/4, 64, unix.IPPROTO_TCP
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	tcp := p[ipv4Header:]
	binary.BigEndian.PutUint16(tcp[0:], from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], 1) // sequence number
	tcp[12], tcp[13] = tcpHeader/4<<4, 0x02
	binary.BigEndian.PutUint16(tcp[14:], 65535) // window
	binary.BigEndian.PutUint16(tcp[16:], tcpChecksum(src, dst, tcp))
	return p
}

// tcpChecksum is that of a segment with its pseudo header, RFC 9293.
func tcpChecksum(src, dst [4]byte, segment []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
	for _, b := range [][]byte{src[:], dst[:], segment} {
		for i := 0; i+1 < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
