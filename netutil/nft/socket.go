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

// granted returns the size of a buffer: in a user namespace smaller than requested.
func granted(fd, buffer int) int {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, buffer)
	if err != nil {
		return 0 // the socket is closed: its next use fails
	}
	return n
}

func (c *Conn) send(b []byte) error {
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return err
		}
	}
}

func (c *Conn) receive(flags int) (int, error) {
	n, err := nlmsg.Receive(c.fd, c.buf, flags)
	if err == nil {
		c.received += n
	}
	return n, err
}

// openSocket opens a socket with a receive buffer of so many bytes.
func openSocket(receiveBytes int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("opening a netlink socket: %w", err)
	}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil { // errors must not echo the whole message, up to 64 KiB
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	}
	for _, opt := range []struct{ force, ask, bytes int }{
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, socketBuffer},
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBytes},
	} {
		// FORCE needs a capability that a user namespace may withhold; then the sysctl limits apply.
		if err == nil && unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.force, opt.bytes) != nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.ask, opt.bytes)
		}
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
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
