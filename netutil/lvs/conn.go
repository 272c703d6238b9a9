package lvs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// patience is how long one message may wait for its answer, whatever the context
// allows. The kernel answers at once, except while it loads a scheduler.
const patience = 30 * time.Second

// A Conn is a connection to the IPVS of the network namespace that it is used
// in. It serves one goroutine at a time.
type Conn struct {
	nl     *netlink.Conn // nil after an error that may have left answers unread
	socket *socket       // beneath nl
	family uint16        // generic netlink's number of IPVS; 0: not known

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
	if c.nl == nil {
		return nil
	}
	err := c.nl.Close()
	c.nl, c.socket = nil, nil
	return err
}

func (c *Conn) open() error {
	if c.nl != nil {
		return nil
	}
	s, pid, err := openSocket()
	if err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	c.nl, c.socket = netlink.NewConn(s, pid), s
	return nil
}

// Probe returns nil if the kernel has IPVS now. Its module may come and go; the
// kernel loads it when it is asked for.
func (c *Conn) Probe(ctx context.Context) error {
	family, err := c.lookUp(ctx)
	c.family = family
	if errors.Is(err, syscall.ENOENT) {
		return ErrUnsupported
	}
	return wrap(err, "looking for IPVS")
}

// lookUp asks generic netlink for the number of IPVS, which it gets anew each
// time that its module is loaded.
func (c *Conn) lookUp(ctx context.Context) (uint16, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	replies, err := c.ask(ctx, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 0, e)
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		ad, err := netlink.NewAttributeDecoder(m.Data)
		if err != nil {
			return 0, err
		}
		for ad.Next() {
			if ad.Type() == unix.CTRL_ATTR_FAMILY_ID {
				return ad.Uint16(), nil
			}
		}
	}
	return 0, errors.New("the kernel named no number")
}

// command sends a command of IPVS and returns the answers.
func (c *Conn) command(ctx context.Context, cmd uint8, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) ([]netlink.Message, error) {
	if c.family == 0 {
		if err := c.Probe(ctx); err != nil {
			return nil, err
		}
	}
	asked := c.family
	replies, err := c.ask(ctx, asked, cmd, flags, e)
	if !errors.Is(err, syscall.ENOENT) {
		return replies, err
	}
	// Generic netlink says the same of a number that nobody has as IPVS of some things.
	switch again := c.Probe(ctx); {
	case again != nil:
		return nil, again
	case c.family != asked:
		return nil, ErrReloaded
	}
	return nil, err
}

// ask sends a question to a family of generic netlink and returns the answers,
// without their generic header.
func (c *Conn) ask(ctx context.Context, family uint16, cmd uint8, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) ([]netlink.Message, error) {
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	replies, err := c.execute(ctx, netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(family), Flags: netlink.Request | flags},
		Data:   append([]byte{cmd, 1, 0, 0}, attrs...),
	})
	if err != nil || flags&netlink.Acknowledge != 0 {
		return nil, err
	}
	for i := range replies {
		if len(replies[i].Data) < generic {
			return nil, fmt.Errorf("a reply of %d bytes is too short", len(replies[i].Data))
		}
		replies[i].Data = replies[i].Data[generic:]
	}
	return replies, nil
}

// execute gives up the socket where an answer may still come.
func (c *Conn) execute(ctx context.Context, m netlink.Message) ([]netlink.Message, error) {
	if err := errors.Join(ctx.Err(), c.open()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c.socket.ctx = ctx
	replies, err := c.nl.Execute(m)
	if _, answered := answer(err); err == nil || answered {
		return replies, err
	}
	return nil, errors.Join(err, c.Close())
}
