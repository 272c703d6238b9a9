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
	// maxRead is the size of the read buffer. The kernel fills at most 32 KiB of a
	// dump for one read, netlink_recvmsg in net/netlink/af_netlink.c.
	maxRead = 64 << 10

	// pollInterval is how often a waiting read checks its context.
	pollInterval = 100 * time.Millisecond
)

// A socket connects netlink.Conn to generic netlink. Its reads block in the kernel
// and take a whole part of a dump in one call: the library's own reads ask for the
// length first and go through the runtime's poller, which leaves other processes
// five times as long to change what is being listed.
type socket struct {
	fd  int
	buf []byte
	ctx context.Context // of the current request
}

// openSocket returns a socket in the network namespace of the caller, and its address.
func openSocket() (*socket, uint32, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, 0, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, buf: make([]byte, maxRead), ctx: context.Background()}
	pid, err := s.bind()
	if err != nil {
		unix.Close(fd)
		return nil, 0, err
	}
	return s, pid, nil
}

func (s *socket) bind() (uint32, error) {
	wait := unix.NsecToTimeval(pollInterval.Nanoseconds())
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

// Close closes the socket. No other call may be running.
func (s *socket) Close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// Send sends a message. The kernel has carried it out when Send returns.
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

// read waits for a reply until the context ends.
func (s *socket) read() (int, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC)
		switch {
		case err == nil && n > len(s.buf):
			return 0, fmt.Errorf("a reply of %d bytes is too long", n)
		case err == nil:
			return n, nil
		case err != unix.EAGAIN && err != unix.EINTR:
			return 0, os.NewSyscallError("recvfrom", err)
		case s.ctx.Err() != nil:
			return 0, s.ctx.Err()
		}
	}
}
