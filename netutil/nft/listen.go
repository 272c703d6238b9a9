package nft

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An Event says that another process committed a change of a table.
type Event struct {
	PID     uint32 // of that process; 0 if unknown
	Process string // its name, at most 15 bytes
	Lost    bool   // events were lost: the table may have been changed
}

// A Monitor watches tables for changes by other processes.
type Monitor struct {
	relevant func(message) relevance
	own      func(port, generation uint32) bool // whether a transaction is ours, and not reported; nil: none is
	touched  func(Event)
	netns    uint64
	file     *os.File
	buf      []byte
	missed   atomic.Bool // it did not listen during a commit

	heard map[uint32]relevance // by sender, of a transaction that is not complete yet
}

// A relevance says how a message concerns a monitor.
type relevance uint8

const (
	isChange relevance = 1 << iota // an event
	isTouch                        // no event: touched is called
)

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
