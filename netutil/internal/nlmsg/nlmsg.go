// Package nlmsg decodes what the kernel sends over netlink, in place: nothing is
// copied, and nothing beyond what was received is read.
package nlmsg

import (
	"encoding/binary"
	"errors"
	"iter"

	"golang.org/x/sys/unix"
)

// ErrTruncated says that a message is longer than what was received of it.
var ErrTruncated = errors.New("the kernel sent a truncated message")

// Receive reads once from a netlink socket, again where a signal interrupts it. It returns how many bytes
// there were and, where they did not all fit into b, ErrTruncated.
func Receive(fd int, b []byte, flags int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(fd, b, flags|unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n > len(b):
			return n, ErrTruncated
		}
		return n, err
	}
}

// A Message is one message from the kernel.
type Message struct {
	Type, Flags uint16
	Seq, Port   uint32 // of the request; of the sender
	Body        []byte // without the header
}

// Each calls do with the messages of one read.
func Each(b []byte, do func(Message) error) error {
	for len(b) >= unix.NLMSG_HDRLEN {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN || n > len(b) {
			return ErrTruncated
		}
		m := Message{
			Type:  binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:]),
			Seq:   binary.NativeEndian.Uint32(b[8:]),
			Port:  binary.NativeEndian.Uint32(b[12:]),
			Body:  b[unix.NLMSG_HDRLEN:n],
		}
		if err := do(m); err != nil {
			return err
		}
		b = b[min(Align(n), len(b)):]
	}
	return nil
}

// IsLast reports whether m is the last answer to its request.
func (m Message) IsLast() bool { return m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR }

// Errno returns what a last answer carries; 0: no error.
func (m Message) Errno() unix.Errno {
	return unix.Errno(-int32(NativeUint32(m.Body)))
}

// Align rounds up to where the next message or attribute begins.
func Align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// An Attr is an attribute with its header; nil: none, which has no value.
type Attr []byte

// Value returns the attribute without its header.
func (a Attr) Value() []byte { return a[min(unix.NLA_HDRLEN, len(a)):] }

// Type returns the type without flags.
func (a Attr) Type() uint16 {
	return binary.NativeEndian.Uint16(a[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
}

// IsNested reports whether the attribute is marked to hold others.
func (a Attr) IsNested() bool {
	return len(a) > 0 && binary.NativeEndian.Uint16(a[2:])&unix.NLA_F_NESTED != 0
}

// Attrs yields the attributes in b with their types, up to one that does not fit.
func Attrs(b []byte) iter.Seq2[uint16, Attr] {
	return func(yield func(uint16, Attr) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.NLA_HDRLEN || n > len(b) || !yield(Attr(b).Type(), b[:n:n]) {
				return
			}
			b = b[min(Align(n), len(b)):]
		}
	}
}

// Find returns the value of the first attribute of a type in b and, where path has
// more types, of the first of those in it, and so on; nil if there is none. It does
// not allocate.
func Find(b []byte, path ...uint16) []byte {
	for _, typ := range path {
		b = first(b, typ)
	}
	return b
}

// first returns the value of the first attribute of a type. Listings of a million
// elements call it for each part of each, so it does without the iterator.
func first(b []byte, typ uint16) []byte {
	for len(b) >= unix.NLA_HDRLEN {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.NLA_HDRLEN || n > len(b) {
			return nil
		}
		if Attr(b).Type() == typ {
			return b[unix.NLA_HDRLEN:n]
		}
		b = b[min(Align(n), len(b)):]
	}
	return nil
}

// Uint8 returns a number; 0 if there is none.
func Uint8(b []byte) uint8 { return orZeros(b, 1)[0] }

// Uint16 returns a number in network order; 0 if b is shorter.
func Uint16(b []byte) uint16 { return binary.BigEndian.Uint16(orZeros(b, 2)) }

// Uint32 returns a number in network order; 0 if b is shorter.
func Uint32(b []byte) uint32 { return binary.BigEndian.Uint32(orZeros(b, 4)) }

// Uint64 returns a number in network order; 0 if b is shorter.
func Uint64(b []byte) uint64 { return binary.BigEndian.Uint64(orZeros(b, 8)) }

// NativeUint16 returns a number in the host's order; 0 if b is shorter.
func NativeUint16(b []byte) uint16 { return binary.NativeEndian.Uint16(orZeros(b, 2)) }

// NativeUint32 returns a number in the host's order; 0 if b is shorter.
func NativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(orZeros(b, 4)) }

// NativeUint64 returns a number in the host's order; 0 if b is shorter.
func NativeUint64(b []byte) uint64 { return binary.NativeEndian.Uint64(orZeros(b, 8)) }

var zeros [8]byte

// orZeros returns b, or zeros if it has fewer bytes than a number of n.
func orZeros(b []byte, n int) []byte {
	if len(b) < n {
		return zeros[:]
	}
	return b
}

// String returns a string without the NUL that ends it.
func String(b []byte) string { return unix.ByteSliceToString(b) }
