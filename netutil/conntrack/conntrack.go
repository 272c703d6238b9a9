// Package conntrack lists and follows what connection tracking has in the kernel, and removes and changes it.
// List gives each Connection that a Filter selects, Prune does with each Flow what a Verdict says, and a Follower tells Events.
//
//	conntrack.go       the netlink socket; how many entries there are, what could not begin
//	entry.go           what an entry says
//	list.go            listing, filtered by the kernel where it can
//	prune.go, edit.go  removing, moving and marking, in batches
//	events.go          what begins and ends
//	encode.go          attributes of messages
//
// ti-mo/conntrack counts. Its dump is decoded whole before the first flow can be judged and cannot be filtered by address, its
// removal is a message and an answer for each flow, and its events are those of everybody: docs/dependencies.md has the figures.
package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

func family(ipv6 bool) byte {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// receiveBuffer is the size of the largest part of a listing, in bytes:
// netlink_recvmsg, net/netlink/af_netlink.c.
const receiveBuffer = 32 << 10

// A socket is a netlink socket that reads part by part: the library would hold a
// whole listing in memory.
type socket struct {
	*netlink.Conn
	raw syscall.RawConn
	buf []byte
}

func openSocket() (*socket, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a conntrack socket: %w", err)
	}
	// Replies need not repeat the message. Without this they are only longer.
	_ = c.SetOption(netlink.CapAcknowledge, true)
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("opening a conntrack socket: %w", errors.Join(err, c.Close()))
	}
	return &socket{Conn: c, raw: raw, buf: make([]byte, receiveBuffer)}, nil
}

// withSocket calls read with a socket that the end of ctx closes: reads take no context.
func withSocket(ctx context.Context, read func(*socket) error) error {
	s, err := openSocket()
	if err != nil {
		return err
	}
	defer s.Close()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	err = read(s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// receiveError says what failed of nlmsg.Receive.
func receiveError(n int, err error) error {
	if err == nlmsg.ErrTruncated {
		return fmt.Errorf("%d bytes at once: %w", n, err)
	}
	return os.NewSyscallError("recvfrom", err)
}

// read calls each with the messages of one part.
func (s *socket) read(each func(nlmsg.Message) error) error {
	var n int
	var err error
	closed := s.raw.Read(func(fd uintptr) bool {
		n, err = nlmsg.Receive(int(fd), s.buf, 0)
		return err != unix.EAGAIN
	})
	switch {
	case closed != nil:
		return closed
	case err != nil:
		return receiveError(n, err)
	}
	return nlmsg.Each(s.buf[:n], each)
}

// size returns how many entries this network namespace has, of every family.
func size(ctx context.Context) (entries uint32, err error) {
	err = withLibrary(ctx, func(c *conntrack.Conn) error {
		all, err := c.StatsGlobal()
		entries = all.Entries
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("counting the entries of connection tracking: %w", err)
	}
	return entries, nil
}

// InsertFailed returns how many packets that would have begun a connection the kernel has dropped since the network
// namespace began, as their entry could not be inserted (insert_failed of conntrack -S). As a rule every source port
// was taken that they could have been translated to. It also counts connections with too many others in one place of the
// table, and those that lost a race: two first packets of one socket at the same moment. A full table is not counted.
func InsertFailed(ctx context.Context) (total uint64, err error) {
	err = withLibrary(ctx, func(c *conntrack.Conn) error {
		processors, err := c.Stats()
		for _, p := range processors {
			total += uint64(p.InsertFailed)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the counters of connection tracking: %w", err)
	}
	return total, nil
}

// withLibrary calls ask with a connection of ti-mo/conntrack that the end of ctx closes: it takes no context.
func withLibrary(ctx context.Context, ask func(*conntrack.Conn) error) error {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	err = ask(c)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
