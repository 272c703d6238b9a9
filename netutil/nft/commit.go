package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// announcedBytes is the size of the largest transaction during which our monitors
// listen. While anyone in the namespace listens, the kernel makes a buffer of 4 KiB
// for each element, and keeps them all until it has committed: 100,000 elements,
// some 6 MB, take 700 MB and three times as long.
const announcedBytes = 256 << 10

// Commit applies all of b or nothing. The kernel applies it during the send, and has
// answered when that returns.
func (c *Conn) Commit(b *Batch) error {
	switch {
	case b.Empty():
		return nil
	case b.Len() > announcedBytes:
		return c.Unheard(1, func() error { return c.commit(b) })
	}
	listeners.RLock()
	defer listeners.RUnlock()
	return c.commit(b)
}

// Ensure is Commit for elements that the kernel may have already. It counts no transaction that changes nothing, so any
// that it counts meanwhile may be of another process, and our monitors report events as lost.
func (c *Conn) Ensure(b *Batch) error {
	if b.Empty() {
		return nil
	}
	return c.Unheard(0, func() error { return c.commit(b) })
}

func (c *Conn) commit(b *Batch) error {
	first, last := b.seal(c.seq + 1)
	c.seq = last
	if err := c.send(b.buf); err != nil {
		return fmt.Errorf("sending %d bytes to nf_tables: %w", len(b.buf), err)
	}
	// The kernel sends every error, and an acknowledgement of the last operation.
	var failed error
	done := false
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		switch {
		case err == unix.EAGAIN && failed == nil && !done:
			return errors.New("nf_tables did not acknowledge a change")
		case err == unix.EAGAIN:
			return failed
		case err != nil:
			return fmt.Errorf("reading acknowledgements of nf_tables: %w", err)
		}
		err = messages(c.buf[:n], func(m message) error {
			if m.Type != unix.NLMSG_ERROR || m.Seq < first || m.Seq > last {
				return nil
			}
			done = done || m.Seq == last-1
			if errno := m.Errno(); errno != 0 && failed == nil {
				what, flows := b.describe(int(m.Seq - first))
				failed = &CommitError{What: what, Errno: errno, last: m.Seq == last-1, flows: flows}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// Try finds out whether the kernel would accept b, without applying it.
func (c *Conn) Try(b *Batch) error {
	b.DeleteChain("is not there") // an operation that must fail at the end keeps the rest from being applied
	err := c.Commit(b)
	if err == nil {
		return errors.New("nf_tables deleted a chain that is not there")
	}
	if failed, is := errors.AsType[*CommitError](err); is && failed.last && failed.Errno == unix.ENOENT {
		return nil
	}
	return err
}

// A CommitError says why a Batch was not applied.
type CommitError struct {
	What  string // what the kernel refused to do
	Errno unix.Errno
	last  bool // it was the last operation
	flows bool
}

// AddsFlows reports whether what the kernel refused is to add a flow table, or a rule that puts
// connections into one.
func (e *CommitError) AddsFlows() bool { return e.flows }

func (e *CommitError) Error() string { return e.What + ": " + e.Errno.Error() }

func (e *CommitError) Unwrap() error { return e.Errno }

// Unheard calls write, which commits up to so many times, while no monitor of this
// process listens, and finds out by the generation whether a foreign commit was missed.
func (c *Conn) Unheard(commits int, write func() error) error {
	listeners.Lock()
	defer listeners.Unlock()
	var here []*Monitor
	for m := range listeners.all {
		if m.netns == c.netns {
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
