package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
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
		return nil, fmt.Errorf("opening a conntrack socket: %w", err)
	}
	// Replies need not repeat the message. Without this they are only longer.
	_ = c.SetOption(netlink.CapAcknowledge, true)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("opening a conntrack socket: %w", errors.Join(err, c.Close()))
	}
	return &socket{Conn: c, raw: raw, buf: make([]byte, receiveBuffer)}, nil
}

// withSocket calls read with a socket that the end of ctx closes: reads take no context.
func withSocket(ctx context.Context, read func(*socket) error) error {
	s, err := openSocket()
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	err = read(s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// receiveError says what failed of nlmsg.Receive.
func receiveError(n int, err error) error {
	if err == nlmsg.ErrTruncated {
		return fmt.Errorf("%d bytes at once: %w", n, err)
	}
	return os.NewSyscallError("recvfrom", err)
}

// read calls each with the messages of one part.
func (s *socket) read(each func(nlmsg.Message) error) error {
	var n int
	var err error
	closed := s.raw.Read(func(fd uintptr) bool {
		n, err = nlmsg.Receive(int(fd), s.buf, 0)
		return err != unix.EAGAIN
	})
	switch {
	case closed != nil:
		return closed
	case err != nil:
		return receiveError(n, err)
	}
	return nlmsg.Each(s.buf[:n], each)
}
