package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// NewMonitor opens a socket that receives nothing until Watch is called. What writer commits is no foreign change.
func NewMonitor(t Table, writer *Conn) (*Monitor, error) {
	m, fd, err := newMonitor(func(msg message) relevance {
		if msg.isOf(t) {
			return isChange
		}
		return 0
	})
	if err != nil {
		return nil, err
	}
	if err := filterEvents(fd, writer.port); err != nil {
		return nil, errors.Join(fmt.Errorf("nf_tables monitor: %w", err), m.Close())
	}
	return m, nil
}

func newMonitor(concerns func(message) relevance) (*Monitor, int, error) {
	fd, err := openSocket(eventBuffer)
	if err != nil {
		return nil, 0, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("nf_tables monitor: %w", err), unix.Close(fd))
	}
	return &Monitor{
		relevant: concerns, netns: namespace(), file: os.NewFile(uintptr(fd), "nf_tables monitor"),
		buf: make([]byte, receiveBuffer), heard: map[uint32]relevance{},
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
		if c := m.relevant(msg); c != 0 {
			m.heard[msg.Port] |= c
		}
		return
	}
	what := m.heard[msg.Port]
	delete(m.heard, msg.Port)
	g := generation(msg)
	if what == 0 || m.own != nil && m.own(msg.Port, g.ID) {
		return
	}
	e := Event{PID: g.PID, Process: g.Process}
	if what&isTouch != 0 {
		m.touched(e)
	}
	if what&isChange != 0 {
		changed(e)
	}
}
