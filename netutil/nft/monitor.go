package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// NewMonitor opens a socket that receives nothing until Watch is called. What writer commits is no foreign change.
func NewMonitor(t Table, writer *Conn) (*Monitor, error) {
	m, fd, err := newMonitor(func(msg message) (change, touch bool) { return msg.isOf(t), false })
	if err != nil {
		return nil, err
	}
	if err := filterEvents(fd, writer.port); err != nil {
		return nil, errors.Join(fmt.Errorf("nf_tables monitor: %w", err), m.Close())
	}
	return m, nil
}

func newMonitor(concerns func(message) (change, touch bool)) (*Monitor, int, error) {
	fd, err := openSocket(eventBuffer)
	if err != nil {
		return nil, 0, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("nf_tables monitor: %w", err), unix.Close(fd))
	}
	return &Monitor{
		concerns: concerns, netns: namespace(), file: os.NewFile(uintptr(fd), "nf_tables monitor"),
		buf: make([]byte, receiveBuffer), changed: map[uint32]bool{}, touch: map[uint32]bool{},
	}, fd, nil
}

// filterEvents lets the kernel drop the events of our own Conn, which can be a
// million elements. It cannot filter by family: a datagram has messages of all that
// one transaction changed, and the filter sees only the first.
func filterEvents(fd int, own uint32) error {
	const (
		load4         = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal, result = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		all           = 1 << 20 // bytes of an event, more than it has
	)
	filter := []unix.SockFilter{
		{Code: load4, K: 12}, // nlmsg_pid: the port of the sender of the change
		{Code: equal, K: swap32(own), Jt: 1},
		{Code: result, K: all},
		{Code: result, K: 0},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// swap32 converts a number in host order to what a filter, which loads in network
// order, reads.
func swap32(n uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, n))
}

// Watch calls changed with each foreign transaction that changed the table, as soon
// as the kernel reports it, until ctx ends. It calls listening once, when no event
// is missed any more.
func (m *Monitor) Watch(ctx context.Context, listening func(), changed func(Event)) error {
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	if err := errors.Join(m.file.SetReadDeadline(time.Time{}), m.listen()); err != nil {
		return fmt.Errorf("listening to nf_tables: %w", err)
	}
	defer m.stopListening()
	listening()
	stop := context.AfterFunc(ctx, m.wake)
	defer stop()
	for {
		err := m.hear(raw, changed)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = m.file.SetReadDeadline(time.Time{})
		}
		if ctx.Err() != nil { // asked after the deadline was lifted: one that is set now lasts
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("listening to nf_tables: %w", err)
		}
		if m.missed.Swap(false) {
			changed(Event{Lost: true})
		}
	}
}

// hear waits for one datagram of events.
func (m *Monitor) hear(raw syscall.RawConn, changed func(Event)) error {
	var n int
	var failed error
	err := raw.Read(func(fd uintptr) bool {
		n, failed = nlmsg.Receive(int(fd), m.buf, 0)
		return failed != unix.EAGAIN
	})
	switch {
	case err != nil:
		return err
	case failed == unix.ENOBUFS || failed == nlmsg.ErrTruncated:
		m.missed.Store(true)
		return nil
	case failed != nil:
		return failed
	}
	return messages(m.buf[:n], func(msg message) error {
		m.event(msg, changed)
		return nil
	})
}

// event handles one message. Those of a transaction come one after another; its
// generation comes last, and names the process.
func (m *Monitor) event(msg message, changed func(Event)) {
	if msg.Type != nftMessage(unix.NFT_MSG_NEWGEN) {
		change, touch := m.concerns(msg)
		if change {
			m.changed[msg.Port] = true
		}
		if touch {
			m.touch[msg.Port] = true
		}
		return
	}
	change, touch := m.changed[msg.Port], m.touch[msg.Port]
	delete(m.changed, msg.Port)
	delete(m.touch, msg.Port)
	g := generation(msg)
	if !change && !touch || m.own != nil && m.own(msg.Port, g.ID) {
		return
	}
	e := Event{PID: g.PID, Process: g.Process}
	if touch {
		m.touched(e)
	}
	if change {
		changed(e)
	}
}

// An Event says that another process committed a change of a table.
type Event struct {
	PID     uint32 // of that process; 0 if unknown
	Process string // its name, at most 15 bytes
	Lost    bool   // events were lost: the table may have been changed
}

// A Monitor watches tables for changes by other processes.
type Monitor struct {
	concerns func(message) (change, touch bool) // an event, and no event, after which touched is called
	own      func(port, generation uint32) bool // whether a transaction is ours, and not reported; nil: none is
	touched  func(Event)
	netns    uint64
	file     *os.File
	buf      []byte
	missed   atomic.Bool // it did not listen during a commit

	changed, touch map[uint32]bool // by sender, what its transaction did that is not complete yet
}

// listeners are the monitors of this process that listen. Each commit holds the lock
// for reading, so that none of ours counts as missed.
var listeners = struct {
	sync.RWMutex
	all map[*Monitor]bool
}{all: map[*Monitor]bool{}}

// Close closes the socket.
func (m *Monitor) Close() error { return m.file.Close() }

// wake interrupts a read of m's socket.
func (m *Monitor) wake() { m.file.SetReadDeadline(time.Unix(1, 0)) }

func (m *Monitor) listen() error {
	listeners.Lock()
	defer listeners.Unlock()
	listeners.all[m] = true
	return m.member(unix.NETLINK_ADD_MEMBERSHIP)
}

func (m *Monitor) stopListening() {
	listeners.Lock()
	defer listeners.Unlock()
	delete(listeners.all, m)
	m.member(unix.NETLINK_DROP_MEMBERSHIP) // fails only if the socket is closed
}

// member joins or leaves the multicast group of events.
func (m *Monitor) member(option int) error {
	raw, err := m.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES)
	})
	return errors.Join(err, failed)
}

// Names say which changes a monitor reports.
type Names struct {
	Tables []Table
	Ours   string // part of the names of our chains and sets

	// Own reports whether a transaction is one of ours, by its sender and the generation
	// that it gave: iptables-restore sends from the port that is its process id, in
	// its own pid namespace.
	Own func(port, generation uint32) bool

	Scratch string // prefix of the names of our chains whose changes are ignored

	Others  []string // other chains, of which a change of the rules calls Touched and is no event
	Touched func(Event)
}

// NewNameMonitor watches tables, in the network namespace of the caller, for foreign
// changes of what has our names: chains, sets, rules in them or that jump to them,
// or whole tables.
func NewNameMonitor(n Names) (*Monitor, error) {
	m, _, err := newMonitor(n.concerns)
	if err == nil {
		m.own, m.touched = n.Own, n.Touched
	}
	return m, err
}

func (n Names) concerns(m message) (change, touch bool) {
	chain, isRule := "", false // what the message is about, or the chain of the rule that it is about
	switch m.Type {
	case nftMessage(unix.NFT_MSG_NEWRULE), nftMessage(unix.NFT_MSG_DELRULE):
		chain, isRule = m.string(unix.NFTA_RULE_CHAIN), true
	case nftMessage(unix.NFT_MSG_NEWCHAIN), nftMessage(unix.NFT_MSG_DELCHAIN):
		chain = m.string(unix.NFTA_CHAIN_NAME)
	}
	switch {
	case !slices.ContainsFunc(n.Tables, m.isOf) || n.Scratch != "" && strings.HasPrefix(chain, n.Scratch):
		return false, false
	case m.Type == nftMessage(unix.NFT_MSG_DELTABLE):
		return true, false
	}
	// The event of a deleted rule has all its expressions, and in them the chain that it jumps to.
	return bytes.Contains(m.Body, []byte(n.Ours)), isRule && slices.Contains(n.Others, chain)
}
