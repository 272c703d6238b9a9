package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A message is one netlink message that was received.
type message struct {
	typ, flags uint16
	seq, port  uint32
	body       []byte // without the netlink header
}

// errno returns what NLMSG_ERROR and NLMSG_DONE carry.
func (m message) errno() unix.Errno {
	if len(m.body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.body)))
}

// attrs calls do with each attribute of an nf_tables message.
func (m message) attrs(do func(typ uint16, value []byte) error) error {
	if len(m.body) < genLen {
		return errTruncated
	}
	return attrs(m.body[genLen:], do)
}

// isOf reports whether a message is about a table or an object in it: each names
// the table in its attribute 1.
func (m message) isOf(t Table) bool {
	return len(m.body) > genLen && m.body[0] == t.Family &&
		getString(find(m.body[genLen:], unix.NFTA_TABLE_NAME)) == t.Name
}

func messages(b []byte, do func(message) error) error {
	for len(b) >= headerLen {
		n := int(binary.NativeEndian.Uint32(b))
		if n < headerLen || n > len(b) {
			return errTruncated
		}
		m := message{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
			port:  binary.NativeEndian.Uint32(b[12:]),
			body:  b[headerLen:n],
		}
		if err := do(m); err != nil {
			return err
		}
		b = b[min(align(n), len(b)):]
	}
	return nil
}

func asError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
