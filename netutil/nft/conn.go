package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// socketBuffer is what we ask for in each direction, in bytes. A batch must fit
// into the send buffer whole: this much holds some five million elements. It is
// a limit; the kernel takes no memory before there is something to hold.
const socketBuffer = 512 << 20

// eventBuffer is how many bytes of events may wait for a monitor, or less where
// the kernel asks for a right to have so many. What is beyond is lost, which the
// monitor is told; as many as others cause may wait while this process stands still.
const eventBuffer = 4 << 20

// receiveBuffer is the most that the kernel puts into one part of a listing, in
// bytes: netlink_recvmsg, <net/netlink/af_netlink.c>. Acknowledgements are smaller.
const receiveBuffer = 32 << 10

// A Conn is a lasting netlink socket in the network namespace of the goroutine
// that dialled. It is used by one goroutine at a time.
type Conn struct {
	fd    int
	space uint64 // the network namespace, see namespace
	port  uint32
	seq   uint32
	in    []byte
	quiet bool // no monitor of this process hears what it commits

	received int
}

// Received returns how many bytes the kernel has answered: what reading has cost.
func (c *Conn) Received() int { return c.received }

// Dial opens a socket. The kernel must know nf_tables, or the error says so.
func Dial() (*Conn, error) {
	fd, err := openSocket(socketBuffer)
	if err != nil {
		return nil, err
	}
	c := &Conn{fd: fd, space: namespace(), in: make([]byte, receiveBuffer)}
	if c.port, err = socketPort(fd); err == nil {
		_, err = c.Generation()
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return c, nil
}

// Hush has no monitor of this process hear what c commits from now on.
func (c *Conn) Hush() { c.quiet = true }

// MaxBatch returns the length of the largest Batch that can be committed, in bytes.
func (c *Conn) MaxBatch() int {
	// netlink_sendmsg, net/netlink/af_netlink.c, takes 32 bytes less than were granted.
	return c.granted(unix.SO_SNDBUF) - 32 - headerLen - genLen // seal ends it with a message
}

// answerBytes is what the answer to a question for one element takes in the
// receive buffer, from above: a buffer of its own for each, with its overhead.
const answerBytes = 2 << 10

// maxQuestions returns how many elements can be asked for at once.
func (c *Conn) maxQuestions() int {
	return min(max(c.granted(unix.SO_RCVBUF)/answerBytes, 1), maxElements)
}

// granted returns how large a buffer is: in a user namespace smaller than was asked for.
func (c *Conn) granted(buffer int) int {
	n, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, buffer)
	if err != nil {
		return 0 // the socket is closed, as who uses it will see
	}
	return n
}

// openSocket opens a socket in which so many bytes may wait to be received.
func openSocket(receive int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("opening a netlink socket: %w", err)
	}
	if err := setUp(fd, receive); err != nil {
		return -1, errors.Join(fmt.Errorf("netlink socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func setUp(fd, receive int) error {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	// An error's answer shall not hold the whole message again, up to 64 KiB.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return err
	}
	for _, opt := range []struct{ force, ask, bytes int }{
		{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, socketBuffer},
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive},
	} {
		// Force needs a right that a user namespace may withhold; then the limits of sysctl count.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.force, opt.bytes) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt.ask, opt.bytes); err != nil {
			return err
		}
	}
	return nil
}

// namespace returns the number of the caller's network namespace, 0 where it
// cannot be told: without /proc.
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
	nl, ok := sa.(*unix.SockaddrNetlink)
	if !ok {
		return 0, errors.New("not a netlink socket")
	}
	return nl.Pid, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Commit does all of b or nothing. The kernel works while it is being sent and
// has answered by then.
func (c *Conn) Commit(b *Batch) error {
	switch {
	case b.Empty():
		return nil
	case c.quiet, b.Len() > loudBytes:
		return c.commitUnheard(b)
	}
	listeners.RLock()
	defer listeners.RUnlock()
	return c.commit(b)
}

func (c *Conn) commit(b *Batch) error {
	first, last := b.seal(c.seq + 1)
	c.seq = last
	if err := c.send(b.buf); err != nil {
		return fmt.Errorf("sending %d bytes to nf_tables: %w", len(b.buf), err)
	}
	return c.acknowledged(b, first, last)
}

// Try finds out whether the kernel would do b, and does nothing of it.
func (c *Conn) Try(b *Batch) error {
	// What cannot be done at the end keeps all the rest from being done.
	b.message(unix.NFT_MSG_DELCHAIN, 0, func(m []byte) []byte {
		return putString(m, unix.NFTA_CHAIN_NAME, "is not there")
	})
	err := c.Commit(b)
	var failed *CommitError
	switch {
	case err == nil:
		return errors.New("nf_tables deleted a chain that is not there")
	case errors.As(err, &failed) && failed.last && failed.Errno == unix.ENOENT:
		return nil
	}
	return err
}

// A CommitError says why nothing of a Batch was done.
type CommitError struct {
	What  string // what the kernel refused to do
	Errno unix.Errno
	last  bool // it was the last thing that was to be done
}

func (e *CommitError) Error() string { return e.What + ": " + e.Errno.Error() }
func (e *CommitError) Unwrap() error { return e.Errno }

func (c *Conn) send(b []byte) error {
	for {
		err := unix.Sendto(c.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return err
		}
	}
}

// acknowledged reads the answers to a batch. The kernel sends every error, and
// an acknowledgement of the last message.
func (c *Conn) acknowledged(b *Batch, first, last uint32) error {
	var failed error
	done := false
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN && failed == nil && !done:
			return errors.New("nf_tables did not acknowledge a change")
		case err == unix.EAGAIN:
			return failed
		case err != nil:
			return fmt.Errorf("reading acknowledgements of nf_tables: %w", err)
		}
		err = messages(c.in[:n], func(m message) error {
			if m.typ != unix.NLMSG_ERROR || m.seq < first || m.seq > last {
				return nil
			}
			done = done || m.seq == last-1
			if errno := m.errno(); errno != 0 && failed == nil {
				failed = &CommitError{What: b.describe(int(m.seq - first)), Errno: errno, last: m.seq == last-1}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

func (c *Conn) receive(flags int) (int, error) {
	for {
		n, _, err := unix.Recvfrom(c.fd, c.in, flags|unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n > len(c.in):
			return 0, errTruncated
		}
		c.received += n
		return n, nil
	}
}

// ErrChanged is returned by a listing during which somebody committed.
var ErrChanged = errors.New("the rules changed while they were read")

// request sends one message and calls each with the answers.
func (c *Conn) request(b []byte, each func(m message) error) error {
	return c.ask(b, ErrChanged, each)
}

// ask does so and fails with changed, if that is not nil, when somebody commits
// during a listing. Without it, an error of each ends it before all was read.
func (c *Conn) ask(b []byte, changed error, each func(m message) error) error {
	c.seq++
	binary.NativeEndian.PutUint32(b[8:], c.seq)
	if err := c.send(b); err != nil {
		return err
	}
	flags := binary.NativeEndian.Uint16(b[6:])
	one := flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0 // else something comes after the answers
	var failed error
	for done := false; !done; {
		n, err := c.receive(0)
		if err != nil {
			return err
		}
		err = messages(c.in[:n], func(m message) error {
			switch {
			case m.seq != c.seq || failed != nil && m.typ != unix.NLMSG_DONE && m.typ != unix.NLMSG_ERROR:
			case m.typ == unix.NLMSG_ERROR || m.typ == unix.NLMSG_DONE:
				done = true
				failed = errors.Join(failed, asError(m.errno()))
			case m.flags&unix.NLM_F_DUMP_INTR != 0 && changed != nil:
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

func asError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

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

// isOf tells whether a message is about a table or something in it: each names
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
