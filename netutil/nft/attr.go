package nft

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Lengths of headers in bytes, <linux/netlink.h>, <linux/netfilter/nfnetlink.h>.
const (
	headerLen  = unix.NLMSG_HDRLEN
	genLen     = 4 // struct nfgenmsg
	attrLen    = unix.NLA_HDRLEN
	attrTypes  = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	attrMax    = 1<<16 - 1
	nlmsgAlign = unix.NLMSG_ALIGNTO
)

func align(n int) int { return (n + nlmsgAlign - 1) &^ (nlmsgAlign - 1) }

// startMessage appends the headers of a message, whose length endMessage sets.
func startMessage(b []byte, typ, flags uint16, family byte, resource uint16) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0) // sequence number, port
	b = append(b, family, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, resource)
}

// endMessage sets the length of the message that begins at start.
func endMessage(b []byte, start int) []byte {
	binary.NativeEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

func nftMessage(typ uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | typ }

func putBytes(b []byte, typ uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrLen+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	return pad(append(b, value...))
}

func putString(b []byte, typ uint16, s string) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrLen+len(s)+1))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, s...)
	return pad(append(b, 0))
}

func putUint32(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, attrLen+4)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.BigEndian.AppendUint32(b, v)
}

// startNest appends the header of an attribute that holds others; endNest sets its length.
func startNest(b []byte, typ uint16) []byte {
	b = binary.NativeEndian.AppendUint16(b, 0)
	return binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED)
}

func endNest(b []byte, start int) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	return b
}

func pad(b []byte) []byte {
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

func putValue(m []byte, typ uint16, value []byte) []byte {
	start := len(m)
	m = startNest(m, typ)
	m = putBytes(m, unix.NFTA_DATA_VALUE, value)
	return endNest(m, start)
}

// putMilliseconds appends a time, rounded up, if there is one.
func putMilliseconds(m []byte, typ uint16, d time.Duration) []byte {
	if d <= 0 {
		return m
	}
	ms := uint64((d + time.Millisecond - 1) / time.Millisecond)
	return putBytes(m, typ, binary.BigEndian.AppendUint64(nil, ms))
}

var errTruncated = errors.New("truncated netlink data")

// attrs calls do with each attribute of b.
func attrs(b []byte, do func(typ uint16, value []byte) error) error {
	for len(b) >= attrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrLen || n > len(b) {
			return errTruncated
		}
		if err := do(binary.NativeEndian.Uint16(b[2:])&attrTypes, b[attrLen:n]); err != nil {
			return err
		}
		b = b[min(align(n), len(b)):]
	}
	return nil
}

type attr struct {
	typ    uint16
	nested bool
	value  []byte
}

// parseAttrs returns the attributes of b, up to the first malformed one.
func parseAttrs(b []byte) (list []attr) {
	for len(b) >= attrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrLen || n > len(b) {
			return append(list, attr{typ: attrTypes})
		}
		typ := binary.NativeEndian.Uint16(b[2:])
		list = append(list, attr{typ & attrTypes, typ&unix.NLA_F_NESTED != 0, b[attrLen:n]})
		b = b[min(align(n), len(b)):]
	}
	return list
}

// byType puts the attributes of list at the index of their type, and reports whether there is room.
func byType(list []byte, into []attr) bool {
	for _, a := range parseAttrs(list) {
		if int(a.typ) >= len(into) {
			return false
		}
		into[a.typ] = a
	}
	return true
}

// find returns the value of the first attribute of a type. It does not allocate.
func find(b []byte, typ uint16) []byte {
	for len(b) >= attrLen {
		n := int(binary.NativeEndian.Uint16(b))
		if n < attrLen || n > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:])&attrTypes == typ {
			return b[attrLen:n]
		}
		b = b[min(align(n), len(b)):]
	}
	return nil
}

func getUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// getString returns a string without the NUL that ends it.
func getString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func milliseconds(b []byte) time.Duration {
	if len(b) != 8 {
		return 0
	}
	return time.Duration(binary.BigEndian.Uint64(b)) * time.Millisecond
}
