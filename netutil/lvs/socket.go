package lvs

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// largest is the most bytes that one read may bring. The kernel fills at most
	// 32 KiB of a dump for one read, netlink_recvmsg in net/netlink/af_netlink.c.
	largest = 64 << 10

	// tick is how often a read that waits asks whether it should go on.
	tick = 100 * time.Millisecond
)

// A socket is netlink.Conn's hands on generic netlink. Its reads block in the
// kernel and take all of a piece of a dump in one call: the library's own look at
// the length first, and go through the runtime's poller, which leaves others five
// times as long to change what is being listed.
type socket struct {
	fd  int
	buf []byte
	ctx context.Context // of the question being asked
}

// openSocket returns a socket of the network namespace of the caller, and its address.
func openSocket() (*socket, uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, buf: make([]byte, largest), ctx: context.Background()}
	pid, err := s.bind()
	if err != nil {
		unix.Close(fd)
		return nil, 0, err
	}
	return s, pid, nil
}

func (s *socket) bind() (uint32, error) {
	wait := unix.NsecToTimeval(tick.Nanoseconds())
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(s.fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return sa.(*unix.SockaddrNetlink).Pid, nil
}

// Close closes the socket. No call may be under way.
func (s *socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// Send sends a message. The kernel has done what it says when it returns.
func (s *socket) Send(m netlink.Message) error { return s.SendMessages([]netlink.Message{m}) }

// SendMessages sends messages.
func (s *socket) SendMessages(list []netlink.Message) error {
	for _, m := range list {
		b, err := m.MarshalBinary()
		if err != nil {
			return err
		}
		if err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return os.NewSyscallError("sendto", err)
		}
	}
	return nil
}

// Receive returns the messages of one read.
func (s *socket) Receive() ([]netlink.Message, error) {
	n, err := s.read()
	if err != nil {
		return nil, err
	}
	raw, err := syscall.ParseNetlinkMessage(append([]byte(nil), s.buf[:n]...))
	if err != nil {
		return nil, fmt.Errorf("reading %d bytes of netlink: %w", n, err)
	}
	list := make([]netlink.Message, len(raw))
	for i, r := range raw {
		list[i] = netlink.Message{Data: r.Data, Header: netlink.Header{
			Length: r.Header.Len, Type: netlink.HeaderType(r.Header.Type), Flags: netlink.HeaderFlags(r.Header.Flags),
			Sequence: r.Header.Seq, PID: r.Header.Pid,
		}}
	}
	return list, nil
}

// read waits for an answer until the context ends.
func (s *socket) read() (int, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		switch {
		case err == nil && n > len(s.buf):
			return 0, fmt.Errorf("an answer of %d bytes is too long", n)
		case err == nil:
			return n, nil
		case err != unix.EAGAIN && err != unix.EINTR:
			return 0, os.NewSyscallError("recvfrom", err)
		case s.ctx.Err() != nil:
			return 0, s.ctx.Err()
		}
	}
}
