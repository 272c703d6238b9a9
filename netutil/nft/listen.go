package nft

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// loudBytes is up to how many bytes of a transaction our monitors go on listening
// to. As long as anybody in the namespace does, the kernel makes a buffer of 4 KiB
// for each element, and keeps them all until it has committed: 100,000 elements,
// some 6 MB, take 700 MB and three times as long.
const loudBytes = 256 << 10

// listeners are the monitors of this process that hear events. The lock is held for
// reading by each commit, so that none of ours counts as one that was missed.
var listeners = struct {
	sync.RWMutex
	all map[*Monitor]bool
}{all: map[*Monitor]bool{}}

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

// member joins or leaves the group that events are sent to.
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

// commitUnheard commits while no monitor of this process listens.
func (c *Conn) commitUnheard(b *Batch) error {
	return c.Unheard(1, func() error { return c.commit(b) })
}

// Unheard calls write, which commits up to so many times, while no monitor of this
// process listens, and finds out by the generation whether one has missed something.
func (c *Conn) Unheard(commits int, write func() error) error {
	listeners.Lock()
	defer listeners.Unlock()
	var here []*Monitor
	for m := range listeners.all {
		if m.space == c.space {
			here = append(here, m)
		}
	}
	before, err := c.Generation()
	for _, m := range here {
		err = errors.Join(err, m.member(unix.NETLINK_DROP_MEMBERSHIP))
	}
	failed := write()
	for _, m := range here {
		err = errors.Join(err, m.member(unix.NETLINK_ADD_MEMBERSHIP))
	}
	after, failedAfter := c.Generation()
	if err = errors.Join(err, failedAfter); err != nil || failed != nil || after.ID-before.ID > uint32(commits) {
		for _, m := range here {
			m.missed.Store(true)
			m.wake()
		}
	}
	return errors.Join(failed, err)
}
