package lvs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// patience is how long one message may wait for its answer, whatever the context
// allows. The kernel answers at once, except while it loads a scheduler.
const patience = 30 * time.Second

// A Conn is a connection to the IPVS of the network namespace that it is used
// in. It serves one goroutine at a time.
type Conn struct {
	reads  *netlink.Conn // nil after an error that may have left answers unread
	writes *ipvs.Handle  // the same
	family uint16        // generic netlink's number of IPVS

	// Messages counts what was written: one for each server or destination.
	Messages int
}

// Dial opens a connection, or says why there can be none.
func Dial(ctx context.Context) (*Conn, error) {
	c := &Conn{}
	if err := c.Probe(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Close closes the connection. The next use opens it again.
func (c *Conn) Close() error {
	if c.writes != nil {
		c.writes.Close()
		c.writes = nil
	}
	return c.closeReads()
}

func (c *Conn) closeReads() error {
	if c.reads == nil {
		return nil
	}
	err := c.reads.Close()
	c.reads = nil
	return err
}

// Probe returns nil if the kernel has IPVS now; its module may come and go.
func (c *Conn) Probe(ctx context.Context) error {
	family, err := c.lookUp(ctx)
	if errors.Is(err, syscall.ENOENT) {
		return ErrUnsupported
	}
	if err != nil {
		return fmt.Errorf("looking for IPVS: %w", err)
	}
	c.family = family
	return prepare(family)
}

// library is what moby/ipvs knows: it looks the family up once in a process.
var library struct {
	sync.Mutex
	family uint16
}

// prepare has moby/ipvs look the family up, now that there is one. With it comes
// a modprobe, whose complaints, on a host that needs none, are not for our log.
func prepare(family uint16) error {
	library.Lock()
	defer library.Unlock()
	if library.family == 0 {
		log := logrus.StandardLogger()
		was := log.Out
		log.SetOutput(io.Discard)
		h, err := ipvs.New("")
		log.SetOutput(was)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		h.Close()
		library.family = family
	}
	if library.family != family {
		return errors.New("the kernel's module ip_vs was removed and loaded anew: only a new process can speak to it")
	}
	return nil
}

// write lets do send one message, and closes what do waits on when its time is
// over: the answer may still come, so that the handle is of no use any more.
func (c *Conn) write(ctx context.Context, do func(*ipvs.Handle) error) error {
	if err := errors.Join(ctx.Err(), c.openWrites()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h := c.writes
	stop := context.AfterFunc(ctx, h.Close)
	c.Messages++
	err := do(h)
	if !stop() {
		c.writes = nil
		return errors.Join(ctx.Err(), err)
	}
	var no syscall.Errno
	if err != nil && !errors.As(err, &no) {
		h.Close()
		c.writes = nil
	}
	return err
}

func (c *Conn) openWrites() (err error) {
	if c.writes != nil {
		return nil
	}
	if c.writes, err = ipvs.New(""); err != nil {
		c.writes = nil
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	return nil
}

// execute sends a question and returns the answers, without their generic header.
func (c *Conn) execute(ctx context.Context, family uint16, flags netlink.HeaderFlags, data []byte) ([]netlink.Message, error) {
	if err := errors.Join(ctx.Err(), c.openReads()); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(patience)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.reads.SetDeadline(deadline); err != nil {
		return nil, err
	}
	replies, err := c.reads.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: netlink.Request | flags},
		Data:   data,
	})
	var no syscall.Errno
	switch {
	case err == nil:
	case errors.As(err, &no) && ctx.Err() == nil: // an answer
		return nil, err
	default:
		return nil, errors.Join(err, c.closeReads())
	}
	for i := range replies {
		if len(replies[i].Data) < generic {
			return nil, fmt.Errorf("a reply of %d bytes is too short", len(replies[i].Data))
		}
		replies[i].Data = replies[i].Data[generic:]
	}
	return replies, nil
}

func (c *Conn) openReads() (err error) {
	if c.reads != nil {
		return nil
	}
	if c.reads, err = netlink.Dial(unix.NETLINK_GENERIC, nil); err != nil {
		c.reads = nil
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	return nil
}
