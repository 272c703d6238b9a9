package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of the largest part of a listing, in bytes:
// netlink_recvmsg, net/netlink/af_netlink.c.
const receiveBuffer = 32 << 10

// A socket is a netlink socket that reads part by part: the library would hold a
// whole listing in memory.
type socket struct {
	*netlink.Conn
	raw syscall.RawConn
	buf []byte
}

func openSocket() (*socket, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	// Replies need not repeat the message. Without this they are only longer.
	_ = c.SetOption(netlink.CapAcknowledge, true)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &socket{Conn: c, raw: raw, buf: make([]byte, receiveBuffer)}, nil
}

// read calls each with the messages of one part.
func (s *socket) read(each func(message) error) error {
	var n int
	var err error
	closed := s.raw.Read(func(fd uintptr) bool {
		for {
			if n, _, err = unix.Recvfrom(int(fd), s.buf, unix.MSG_TRUNC); err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case closed != nil:
		return closed
	case err != nil:
		return os.NewSyscallError("recvfrom", err)
	case n > len(s.buf):
		return fmt.Errorf("%d bytes at once: %w", n, errShort)
	}
	return messages(s.buf[:n], each)
}

// A message is a netlink message from the kernel.
type message struct {
	typ  uint16
	seq  uint32 // of the request
	data []byte
}

func messages(b []byte, each func(message) error) error {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return errShort
		}
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return errShort
		}
		m := message{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:]), b[unix.SizeofNlMsghdr:size]}
		if err := each(m); err != nil {
			return err
		}
		b = b[min(align(size), len(b)):]
	}
	return nil
}

// last reports whether m is the last reply to its request.
func (m message) last() bool { return m.typ == unix.NLMSG_DONE || m.typ == unix.NLMSG_ERROR }

// errno returns the errno in a reply; 0: none.
func (m message) errno() unix.Errno {
	if len(m.data) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
}
