package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A Conn is a lasting netlink socket in the network namespace of the goroutine
// that dialled. It is used by one goroutine at a time.
type Conn struct {
	fd       int
	buf      []byte // for what is received
	received int    // bytes so far
	netns    uint64 // the network namespace, see namespace
	port     uint32
	seq      uint32
}

// Received returns how many bytes were received: the cost of reading.
func (c *Conn) Received() int { return c.received }

// Dial opens a socket. The kernel must support nf_tables, or the error says so.
func Dial() (*Conn, error) {
	fd, err := openSocket(socketBuffer)
	if err != nil {
		return nil, err
	}
	c := &Conn{fd: fd, buf: make([]byte, receiveBuffer), netns: namespace()}
	address, err := unix.Getsockname(fd)
	if err == nil {
		c.port = address.(*unix.SockaddrNetlink).Pid
		_, err = c.Generation()
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return c, nil
}

// MaxBatch returns the length of the largest Batch that can be committed, in bytes.
func (c *Conn) MaxBatch() int {
	// netlink_sendmsg, net/netlink/af_netlink.c, takes 32 bytes less than were granted.
	return granted(c.fd, unix.SO_SNDBUF) - 32 - headerLen - genLen // seal ends it with a message
}

// answerBytes is an upper bound of what the answer to a request for one element
// takes in the receive buffer: a buffer of its own for each, with its overhead.
const answerBytes = 2 << 10

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// ErrChanged is returned by a listing during which another process committed.
var ErrChanged = errors.New("the rules changed while they were read")

// request sends one message and calls each with the answers.
func (c *Conn) request(b []byte, each func(m message) error) error {
	return c.ask(b, ErrChanged, each)
}

// ask is request, but fails with changed, if that is not nil, when another process
// commits during a listing. If it is nil, an error of each returns before all was read.
func (c *Conn) ask(b []byte, changed error, each func(m message) error) error {
	c.seq++
	binary.NativeEndian.PutUint32(b[8:], c.seq)
	if err := c.send(b); err != nil {
		return err
	}
	flags := binary.NativeEndian.Uint16(b[6:])
	one := flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0 // otherwise a message follows the answers
	var failed error
	for done := false; !done; {
		n, err := c.receive(0)
		if err != nil {
			return err
		}
		err = messages(c.buf[:n], func(m message) error {
			switch {
			case m.Seq != c.seq || failed != nil && !m.IsLast():
			case m.IsLast():
				done = true
				if errno := m.Errno(); errno != 0 {
					failed = errors.Join(failed, errno)
				}
			case m.Flags&unix.NLM_F_DUMP_INTR != 0 && changed != nil:
				failed = changed
			default:
				failed = each(m)
				done = one || failed != nil && changed == nil
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return failed
}

// A Generation counts the transactions of a network namespace.
type Generation struct {
	ID      uint32
	PID     uint32 // of the process that committed the last one; 0 if unknown
	Process string
}

// Generation asks for the number of the last transaction.
func (c *Conn) Generation() (g Generation, err error) {
	m := startMessage(nil, nftMessage(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC, 0)
	err = c.request(endMessage(m, 0), func(m message) error {
		g = generation(m)
		return nil
	})
	if err != nil {
		return g, fmt.Errorf("asking nf_tables for its generation: %w", err)
	}
	return g, nil
}

// FinishedGeneration is Generation once that transaction is finished. The kernel counts
// a transaction before it unlinks what that deletes, and goes on with a listing at a
// position: one that begins in between lacks some objects that the transaction does not
// touch, has others twice, and is not marked as interrupted. Of 2,190 listings beside the
// exchange of half of 2,000 chains, while another process listened, 57 were wrong (Linux 6.18).
func (c *Conn) FinishedGeneration() (Generation, error) {
	g, err := c.Generation()
	if err != nil {
		return g, err
	}
	// A transaction without operations is not counted, but waits for the one in progress:
	// nf_tables_valid_genid, net/netfilter/nf_tables_api.c, takes the lock of commits.
	b := NewBatch(Table{})
	_, c.seq = b.seal(c.seq + 1)
	if err := c.send(b.buf); err != nil {
		return g, fmt.Errorf("waiting for the transaction in progress of nf_tables: %w", err)
	}
	return g, nil
}

// CurrentGeneration returns the number of the last transaction in the network namespace
// of the calling thread.
func CurrentGeneration() (uint32, error) {
	c, err := Dial()
	if err != nil {
		return 0, err
	}
	g, err := c.Generation()
	return g.ID, errors.Join(err, c.Close())
}

// generation decodes a Generation. In an answer, its process is the one that asked.
func generation(m message) Generation {
	return Generation{
		ID: m.uint32(unix.NFTA_GEN_ID), PID: m.uint32(unix.NFTA_GEN_PROC_PID), Process: m.string(unix.NFTA_GEN_PROC_NAME),
	}
}

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
