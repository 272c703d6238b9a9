package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A Wire is a packet socket of a host: it sees and sends whole frames.
type Wire struct{ fd int }

// Tap opens a Wire for TCP packets on an interface of a host.
func Tap(h *Host, device string) (*Wire, error) {
	w := &Wire{fd: -1}
	err := h.Do(func() (err error) {
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL)) // in network order
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		link, err := h.Links.LinkByName(device)
		if err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening to %s of %s: %w", device, h.Role, err), w.Close())
	}
	return w, nil
}

// Close ends it.
func (w *Wire) Close() error {
	if w.fd < 0 {
		return nil
	}
	return unix.Close(w.fd)
}

// A Segment is a TCP segment in its frame.
type Segment struct {
	frame    []byte
	addrs    []byte // source and destination
	tcp, end int    // where the segment begins and ends
}

const ethernet = 14 // bytes of the header

// parseSegment returns nil for what is no TCP segment.
func parseSegment(frame []byte) *Segment {
	if len(frame) < ethernet+40 {
		return nil
	}
	ip := frame[ethernet:]
	s := &Segment{frame: frame}
	switch {
	case ip[0]>>4 == 4 && ip[9] == unix.IPPROTO_TCP:
		s.addrs, s.tcp = ip[12:20], ethernet+4*int(ip[0]&15)
		s.end = ethernet + int(binary.BigEndian.Uint16(ip[2:]))
	case ip[0]>>4 == 6 && ip[6] == unix.IPPROTO_TCP:
		s.addrs, s.tcp = ip[8:40], ethernet+40
		s.end = s.tcp + int(binary.BigEndian.Uint16(ip[4:]))
	default:
		return nil
	}
	if s.end > len(frame) || s.tcp+20 > s.end {
		return nil
	}
	return s
}

func (s *Segment) header() []byte { return s.frame[s.tcp:s.end] }

// From returns the port that it comes from, Payload how many bytes it carries.
func (s *Segment) From() uint16 { return binary.BigEndian.Uint16(s.header()) }
func (s *Segment) Payload() int { return s.end - s.tcp - 4*int(s.header()[12]>>4) }

// Shift moves its place in the stream.
func (s *Segment) Shift(by int32) {
	h := s.header()
	binary.BigEndian.PutUint32(h[4:], binary.BigEndian.Uint32(h[4:])+uint32(by))
	h[16], h[17] = 0, 0
	binary.BigEndian.PutUint16(h[16:], s.checksum())
}

// checksum is that of TCP, RFC 9293 section 3.1.
func (s *Segment) checksum() uint16 {
	sum := uint32(unix.IPPROTO_TCP + s.end - s.tcp)
	for _, b := range [][]byte{s.addrs, s.header()} {
		for i := range b {
			sum += uint32(b[i]) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Next returns the next segment with a payload from a port.
func (w *Wire) Next(port uint16, patience time.Duration) (*Segment, error) {
	deadline := time.Now().Add(patience)
	buf := make([]byte, 1<<16)
	for {
		left := unix.NsecToTimeval(max(time.Until(deadline), time.Microsecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(w.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &left); err != nil {
			return nil, fmt.Errorf("waiting for a segment: %w", err)
		}
		n, err := unix.Read(w.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("waiting for a segment from port %d: %w", port, err)
		}
		if s := parseSegment(buf[:n]); s != nil && s.From() == port && s.Payload() > 0 {
			return s, nil
		}
	}
}

// Send puts a segment on the wire.
func (w *Wire) Send(s *Segment) error {
	if _, err := unix.Write(w.fd, s.frame[:s.end]); err != nil {
		return fmt.Errorf("sending a segment: %w", err)
	}
	return nil
}
