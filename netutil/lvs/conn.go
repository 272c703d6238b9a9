package lvs

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// replyTimeout limits the wait for the reply to one message, whatever the context
// allows. The kernel replies at once, except while it loads a scheduler.
const replyTimeout = 30 * time.Second

// A Conn is a connection to the IPVS of the network namespace that it was opened
// in. One goroutine at a time may use it.
type Conn struct {
	handle *ipvs.Handle     // nil after an error that may have left replies unread
	raw    *nl.SocketHandle // for messages of our own; there where handle is

	tunnels [GRE + 1]bool // those that this kernel is known to make

	// Messages counts the writes: one for each server or destination.
	Messages int
}

// Dial opens a connection.
func Dial(ctx context.Context) (*Conn, error) {
	c := &Conn{}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Close closes the connection. The next use opens it again.
func (c *Conn) Close() error {
	if c.handle != nil {
		c.handle.Close()
		c.raw.Close()
		c.handle = nil
	}
	return nil
}

// family is the number that generic netlink had for IPVS when this process first asked. It is another one each time
// that the module is loaded, but the library asks once a process.
var family struct {
	sync.Mutex
	id uint16
}

// Probe returns nil if the kernel has IPVS now. Its module may be loaded, and removed while there are no virtual servers,
// at any time; the lookup makes the kernel load it. After a removal all fails with ErrReloaded in this process.
//
// Without IPVS in the kernel, the library runs modprobe and then reports success: it must not be used before this.
func (c *Conn) Probe(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f, err := netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, syscall.ENOENT) {
		return ErrUnsupported
	}
	if err != nil {
		return wrap(err, "looking for IPVS")
	}
	family.Lock()
	defer family.Unlock()
	if family.id == 0 {
		family.id = f.ID
		logrus.SetOutput(io.Discard) // the library says on stderr that modprobe failed, which the lookup had the kernel run already
	}
	if family.id != f.ID {
		return ErrReloaded
	}
	return nil
}

func (c *Conn) open(ctx context.Context) error {
	if c.handle != nil {
		return nil
	}
	if err := c.Probe(ctx); err != nil {
		return err
	}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		return wrap(err, "opening a netlink socket")
	}
	timeout := unix.NsecToTimeval(replyTimeout.Nanoseconds())
	if err = socket.SetReceiveTimeout(&timeout); err == nil {
		c.handle, err = ipvs.New("")
	}
	if err != nil {
		socket.Close()
		return wrap(err, "opening a netlink socket")
	}
	c.raw = &nl.SocketHandle{Socket: socket}
	return nil
}

// do has the library ask the kernel. The library waits for a reply without end, and takes no context: closing its socket
// ends the wait.
func (c *Conn) do(ctx context.Context, ask func(*ipvs.Handle) error) error {
	if err := c.open(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	stop := context.AfterFunc(ctx, c.handle.Close)
	err := ask(c.handle)
	if !stop() {
		return errors.Join(ctx.Err(), c.Close())
	}
	if _, answered := errors.AsType[syscall.Errno](err); err != nil && !answered || errors.Is(err, syscall.ENOBUFS) {
		return errors.Join(err, c.Close())
	}
	return c.found(ctx, err)
}

// found returns err, or why it is one: generic netlink answers an unknown family with the errno that IPVS has for what
// is missing.
func (c *Conn) found(ctx context.Context, err error) error {
	if errors.Is(err, syscall.ENOENT) {
		if probeErr := c.Probe(ctx); probeErr != nil {
			return probeErr
		}
	}
	return err
}

func ignoreNotExist(err error) error {
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	return err
}
