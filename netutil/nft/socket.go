package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// socketBuffer is the buffer size that we request in each direction, in bytes. A
// batch must fit into the send buffer: this holds some five million elements. It is
// a limit; the kernel allocates memory only as needed.
const socketBuffer = 512 << 20

// eventBuffer is how many bytes of events may wait for a monitor, or less where
// the kernel requires a capability for as many. Events beyond that are lost, which
// the monitor is told.
const eventBuffer = 4 << 20

// receiveBuffer is the most that the kernel puts into one part of a listing, in
// bytes: netlink_recvmsg, <net/netlink/af_netlink.c>. Acknowledgements are smaller.
const receiveBuffer = 32 << 10

// A socket is one of netlink, with a buffer for what it receives.
type socket struct {
	fd       int
	buf      []byte
	received int // bytes so far
}

// granted returns the size of a buffer: in a user namespace smaller than requested.
func (s *socket) granted(buffer int) int {
	n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, buffer)
	if err != nil {
		return 0 // the socket is closed: its next use fails
	}
	return n
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return err
		}
	}
}

func (s *socket) receive(flags int) (int, error) {
	n, err := nlmsg.Receive(s.fd, s.buf, flags)
	if err == nil {
		s.received += n
	}
	return n, err
}

// openSocket opens a socket with a receive buffer of so many bytes.
func openSocket(receiveBytes int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := setUp(fd, receiveBytes); err != nil {
		return -1, errors.Join(fmt.Errorf("netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func setUp(fd, receiveBytes int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// Errors must not echo the whole message, up to 64 KiB.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return err
	}
	for _, opt := range []struct{ force, ask, bytes int }{
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, socketBuffer},
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBytes},
	} {
		// FORCE needs a capability that a user namespace may withhold; then the sysctl limits apply.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.force, opt.bytes) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.ask, opt.bytes); err != nil {
			return err
		}
	}
	return nil
}

// namespace returns the inode of the caller's network namespace, 0 where it is
// unknown: without /proc.
func namespace() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0
	}
	return st.Ino
}

func socketPort(fd int) (uint32, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return sa.(*unix.SockaddrNetlink).Pid, nil
}
