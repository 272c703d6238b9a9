package nft

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/internal/nlmsg"
)

// A LoggedPacket is one that a rule with a log statement sent to user space.
type LoggedPacket struct {
	Family  byte   // unix.NFPROTO_IPV4 and so on
	Prefix  string // of the statement
	In, Out int    // indices of interfaces; 0: none
	Mark    uint32 // when it was logged
	Data    []byte // from the network header on, truncated; valid until the next Receive
}

// A PacketLog receives logged packets, and on request traces, in the order in which
// the kernel sends them. It is used by one goroutine at a time.
type PacketLog struct {
	Group uint16 // of log statements; taken until Close, or until the process ends

	file *os.File
	buf  []byte
}

// groupTries is how many groups may be taken by others.
const groupTries = 64

// OpenPacketLog takes a free group, from first on. It gets up to snap bytes of each packet,
// at once. Traces are of all packets with nftrace.
func OpenPacketLog(first uint16, snap uint32, traces bool) (*PacketLog, error) {
	fd, err := openSocket(eventBuffer)
	if err != nil {
		return nil, err
	}
	l := &PacketLog{Group: first, buf: make([]byte, receiveBuffer)}
	err = l.configure(&Conn{fd: fd, buf: l.buf}, snap, traces)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	l.file = os.NewFile(uintptr(fd), "nflog")
	return l, nil
}

// From <linux/netfilter/nfnetlink_log.h>.
const (
	logSubsystem = unix.NFNL_SUBSYS_ULOG << 8
	logPacket    = logSubsystem     // NFULNL_MSG_PACKET, 0
	logConfig    = logSubsystem | 1 // NFULNL_MSG_CONFIG
	logCommand   = 1                // NFULA_CFG_CMD
	logMode      = 2                // NFULA_CFG_MODE
	logTimeout   = 4                // NFULA_CFG_TIMEOUT, 10 ms each
	logThreshold = 5                // NFULA_CFG_QTHRESH, packets
	logBind      = 1                // NFULNL_CFG_CMD_BIND
	logCopy      = 2                // NFULNL_COPY_PACKET

	logMark, logIn, logOut, logPayload, logPrefix = 2, 4, 5, 9, 10 // NFULA_MARK and so on
)

func (l *PacketLog) configure(c *Conn, snap uint32, traces bool) error {
	if err := l.bind(c); err != nil {
		return fmt.Errorf("taking a group of logged packets: %w", err)
	}
	err := c.request(l.config(func(m []byte) []byte {
		m = putBytes(m, logMode, append(binary.BigEndian.AppendUint32(nil, snap), logCopy, 0))
		m = putUint32(m, logTimeout, 1)
		return putUint32(m, logThreshold, 1)
	}), ignore)
	if err != nil {
		return fmt.Errorf("asking for logged packets: %w", err)
	}
	if traces {
		err = unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTRACE)
	}
	if err != nil {
		return fmt.Errorf("asking for traces: %w", err)
	}
	return nil
}

func ignore(message) error { return nil }

// bind takes the first group that is free. The kernel says EPERM of a taken one too.
func (l *PacketLog) bind(c *Conn) error {
	var err error
	for range groupTries {
		err = c.request(l.config(func(m []byte) []byte { return putBytes(m, logCommand, []byte{logBind}) }), ignore)
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EPERM) {
			return err
		}
		l.Group++
	}
	return err
}

func (l *PacketLog) config(fill func([]byte) []byte) []byte {
	return endMessage(fill(startMessage(nil, logConfig, unix.NLM_F_ACK, unix.AF_UNSPEC, l.Group)), 0)
}

// Close ends the listening.
func (l *PacketLog) Close() error { return l.file.Close() }

// maxDatagrams is how many a call of Receive takes at most.
const maxDatagrams = 1000

// Receive waits for what comes next, until the deadline, and calls one of the two with it,
// and with all else that waits, up to a bound. It reports whether nothing is left waiting.
// The error wraps os.ErrDeadlineExceeded when nothing came, and unix.ENOBUFS when the
// kernel had no room and some is lost.
func (l *PacketLog) Receive(deadline time.Time, logged func(*LoggedPacket), traced func(*Trace)) (drained bool, err error) {
	raw, err := l.file.SyscallConn()
	if err = cmp.Or(err, l.file.SetReadDeadline(deadline)); err != nil {
		return false, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for taken := range maxDatagrams {
			n, err := nlmsg.Receive(int(fd), l.buf, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				drained = taken > 0
				return drained
			}
			if failed = err; failed == nil {
				failed = dispatch(l.buf[:n], logged, traced)
			}
			if failed != nil {
				return true
			}
		}
		return true
	})
	if err = cmp.Or(err, failed); err != nil {
		return errors.Is(err, os.ErrDeadlineExceeded), fmt.Errorf("receiving logged packets: %w", err)
	}
	return drained, nil
}

// dispatch calls one of the two with each message of a datagram.
func dispatch(datagram []byte, logged func(*LoggedPacket), traced func(*Trace)) error {
	return messages(datagram, func(m message) error {
		switch {
		case len(m.Body) < genLen:
			return nil
		case m.Type == logPacket:
			logged(loggedPacket(m))
		case m.Type == nftMessage(unix.NFT_MSG_TRACE):
			traced(trace(m))
		}
		return nil
	})
}

func loggedPacket(m message) *LoggedPacket {
	return &LoggedPacket{
		Family: m.Body[0], Prefix: m.string(logPrefix), Mark: m.uint32(logMark), Data: m.find(logPayload),
		In: int(m.uint32(logIn)), Out: int(m.uint32(logOut)),
	}
}

// A Trace is one step of a packet with nftrace.
type Trace struct {
	Table
	Chain   string
	ID      uint32 // of the packet, on all its way
	Verdict string // "accept", "drop", "jump" and so on; empty: the packet goes on

	Network, Transport []byte // headers; the first step in each base chain has them
}

// From <linux/netfilter/nf_tables.h>.
const (
	traceTable, traceChain, traceVerdict, traceID, traceNetwork, traceTransport, tracePolicy = 1, 2, 5, 6, 8, 9, 16

	verdictCode = 1 // NFTA_VERDICT_CODE
)

// verdictNames are those of nf_tables and netfilter, by their code.
var verdictNames = map[int32]string{
	unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return", unix.NFT_BREAK: "",
	Drop: "drop", Accept: "accept", 2: "stolen", 3: "queue", unix.NFT_CONTINUE: "",
}

func trace(m message) *Trace {
	t := &Trace{
		Table: Table{m.Body[0], m.string(traceTable)}, Chain: m.string(traceChain),
		ID: m.uint32(traceID), Network: m.find(traceNetwork), Transport: m.find(traceTransport),
	}
	if v := m.find(traceVerdict); v != nil {
		t.Verdict = verdictNames[int32(nlmsg.Uint32(nlmsg.Find(v, verdictCode)))]
	}
	if v := m.find(tracePolicy); len(v) == 4 {
		t.Verdict = verdictNames[int32(nlmsg.Uint32(v))]
	}
	return t
}
