package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

const (
	// eventBuffer is the receive buffer of events, in bytes: the kernel counts some
	// 800 for each, so this is for 5,000 connections, or 20 ms of 250,000 a second.
	eventBuffer = 4 << 20

	// eventRest is how long a Follower pauses when it has read everything: to be woken
	// for each connection costs several times what it costs to read it.
	eventRest = 20 * time.Millisecond
)

// An Event is the beginning or the end of a connection. It has ended when connection
// tracking forgets it: TCP two minutes after its last packet.
type Event struct {
	Connection
	IPv6  bool
	Begun bool // else it has ended
}

// A Follower hears of connections whose destination was translated. The kernel tells
// only of those that begin after it was opened, and needs net.netfilter.nf_conntrack_events.
type Follower struct {
	fd  int // that no poller watches: it would be woken for each connection
	buf []byte
}

// Follow opens a Follower in the network namespace of the caller, which must call Run.
// Without ends it only hears of beginnings, which costs the kernel half.
func Follow(ends bool) (*Follower, error) {
	s, err := openSocket()
	if err != nil {
		return nil, err
	}
	groups := []uint32{unix.NFNLGRP_CONNTRACK_NEW}
	if ends {
		groups = append(groups, unix.NFNLGRP_CONNTRACK_DESTROY)
	}
	f := &Follower{buf: s.buf}
	if err = s.subscribe(groups); err == nil {
		failed := s.raw.Control(func(old uintptr) { f.fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
		err = errors.Join(failed, err)
	}
	if err = errors.Join(err, s.Close()); err != nil { // ends the poller's watch
		return nil, fmt.Errorf("asking for conntrack events: %w", err)
	}
	return f, nil
}

// subscribe joins multicast groups, behind a filter. In a user namespace a larger buffer is not allowed:
// a smaller one loses more events, which is noticed.
func (s *socket) subscribe(groups []uint32) error {
	program, err := bpf.Assemble(translatedOnly)
	if err == nil {
		err = s.SetBPF(program)
	}
	if err != nil {
		return err
	}
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	})
	for _, g := range groups {
		if err := s.JoinGroup(g); err != nil {
			return err
		}
	}
	return nil
}

// findAttribute is the offset at which a filter loads the offset of the attribute X, at
// or after A, in a message; 0: there is none. SKF_AD_OFF + SKF_AD_NLATTR, <linux/filter.h>.
const findAttribute = 0xfffff000 + 12

// translatedOnly lets messages pass about connections whose destination was translated,
// and those that do not tell.
var translatedOnly = []bpf.Instruction{
	bpf.LoadConstant{Dst: bpf.RegA, Val: unix.SizeofNlMsghdr + nfgenLen},
	bpf.LoadConstant{Dst: bpf.RegX, Val: attrStatus},
	bpf.LoadAbsolute{Off: findAttribute, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 3},
	bpf.TAX{},
	bpf.LoadIndirect{Off: unix.NLA_HDRLEN, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: destinationTranslated, SkipTrue: 1},
	bpf.RetConstant{Val: 1<<32 - 1},
	bpf.RetConstant{Val: 0},
}

// Run calls each with every event until ctx ends, whose error it returns, or the
// Follower fails. Then it closes the Follower. It calls lost when the kernel had to drop
// some, because they came faster than they were read.
func (f *Follower) Run(ctx context.Context, each func(Event), lost func()) error {
	defer unix.Close(f.fd)
	rest := time.NewTicker(eventRest)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-rest.C:
		}
		switch err := f.readAll(ctx, each); {
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case err != nil:
			return fmt.Errorf("reading conntrack events: %w", err)
		}
	}
}

// readAll calls each with all events that are there.
func (f *Follower) readAll(ctx context.Context, each func(Event)) error {
	for ctx.Err() == nil {
		n, err := nlmsg.Receive(f.fd, f.buf, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return receiveError(n, err)
		}
		err = nlmsg.Each(f.buf[:n], func(m nlmsg.Message) error {
			var e entry
			if len(m.Body) > 0 && e.decode(m.Body) == nil && !e.late && e.Translated {
				each(Event{Connection: e.Connection, IPv6: m.Body[0] == unix.AF_INET6, Begun: m.Type == uint16(changeEntry)})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
