package lvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// replyTimeout limits the wait for the reply to one message, whatever the context
// allows. The kernel replies at once, except while it loads a scheduler.
const replyTimeout = 30 * time.Second

// A Conn is a connection to the IPVS of the network namespace that it is used
// in. One goroutine at a time may use it.
type Conn struct {
	nl     *netlink.Conn // nil after an error that may have left replies unread
	socket *socket       // beneath nl
	family uint16        // generic netlink's family ID of IPVS; 0: unknown

	tunnels [GRE + 1]bool // those that this kernel is known to make

	// Messages counts the writes: one for each server or destination.
	Messages int
}

// Dial opens a connection.
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

// Probe returns nil if the kernel has IPVS now. Its module may be loaded and removed
// at any time; the lookup makes the kernel load it.
func (c *Conn) Probe(ctx context.Context) error {
	family, err := c.lookUpFamily(ctx)
	c.family = family
	if errors.Is(err, syscall.ENOENT) {
		return ErrUnsupported
	}
	return wrap(err, "looking for IPVS")
}

// lookUpFamily asks generic netlink for the family ID of IPVS, which changes each
// time its module is loaded.
func (c *Conn) lookUpFamily(ctx context.Context) (uint16, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	replies, err := c.request(ctx, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 0, e)
	if err != nil {
		return 0, err
	}
	for _, m := range replies {
		if id := nlmsg.Find(m.Data, unix.CTRL_ATTR_FAMILY_ID); len(id) == 2 {
			return binary.NativeEndian.Uint16(id), nil
		}
	}
	return 0, errors.New("the reply has no family ID")
}

// command sends an IPVS command and returns the replies.
func (c *Conn) command(ctx context.Context, cmd uint8, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) ([]netlink.Message, error) {
	if c.family == 0 {
		if err := c.Probe(ctx); err != nil {
			return nil, err
		}
	}
	family := c.family
	replies, err := c.request(ctx, family, cmd, flags, e)
	if !errors.Is(err, syscall.ENOENT) {
		return replies, err
	}
	// Generic netlink answers an unknown family ID with the errno that IPVS has for missing objects.
	switch probeErr := c.Probe(ctx); {
	case probeErr != nil:
		return nil, probeErr
	case c.family != family:
		return nil, ErrReloaded
	}
	return nil, err
}

// request sends a request to a generic netlink family and returns the replies
// without their generic header.
func (c *Conn) request(ctx context.Context, family uint16, cmd uint8, flags netlink.HeaderFlags, e *netlink.AttributeEncoder) ([]netlink.Message, error) {
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
		if len(replies[i].Data) < genlHeader {
			return nil, fmt.Errorf("a reply of %d bytes is too short", len(replies[i].Data))
		}
		replies[i].Data = replies[i].Data[genlHeader:]
	}
	return replies, nil
}

// execute closes the socket if a reply may still arrive.
func (c *Conn) execute(ctx context.Context, m netlink.Message) ([]netlink.Message, error) {
	if err := errors.Join(ctx.Err(), c.open()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	c.socket.ctx = ctx
	replies, err := c.nl.Execute(m)
	if _, answered := kernelErrno(err); err == nil || answered {
		return replies, err
	}
	return nil, errors.Join(err, c.Close())
}
