package nft

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// Lengths of headers in bytes, <linux/netlink.h>, <linux/netfilter/nfnetlink.h>.
const (
	headerLen = unix.NLMSG_HDRLEN
	genLen    = 4 // struct nfgenmsg
	attrLen   = unix.NLA_HDRLEN
	attrMax   = 1<<16 - 1
)

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

func milliseconds(b []byte) time.Duration { return time.Duration(nlmsg.Uint64(b)) * time.Millisecond }

// A message is one nf_tables message that was received.
type message struct{ nlmsg.Message }

func messages(b []byte, do func(message) error) error {
	return nlmsg.Each(b, func(m nlmsg.Message) error { return do(message{m}) })
}

// find returns the value of an attribute, see nlmsg.Find.
func (m message) find(path ...uint16) []byte {
	return nlmsg.Find(m.Body[min(genLen, len(m.Body)):], path...)
}

func (m message) string(path ...uint16) string { return nlmsg.String(m.find(path...)) }
func (m message) uint32(path ...uint16) uint32 { return nlmsg.Uint32(m.find(path...)) }

// A Table names a table.
type Table struct {
	Family byte // unix.NFPROTO_IPV4 and so on
	Name   string
}

// isOf reports whether a message is about a table or an object in it: each names
// the table in its attribute 1.
func (m message) isOf(t Table) bool {
	return len(m.Body) > genLen && m.Body[0] == t.Family && m.string(unix.NFTA_TABLE_NAME) == t.Name
}

// generation returns the lower half of the number of the transaction that an object is listed as of.
func (m message) generation() uint16 {
	return nlmsg.Uint16(m.Body[min(2, len(m.Body)):])
}
