package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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
