package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/echotest"
	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// Patience is how long a question waits before it counts as dropped, and longer on a
// busy machine. An answer takes some 0.2 ms; a lost TCP SYN would be sent again after 1 s.
var Patience = Slow(400 * time.Millisecond)

// A Question is one new connection, or one datagram from a new port.
type Question struct {
	From     *Host
	Source   netip.Addr // one of From's; not valid: the kernel's choice
	Protocol source.Protocol
	To       netip.AddrPort
	Patience time.Duration // 0: Patience
	Port     uint16        // of the client, 0: the kernel's choice
}

func (q Question) String() string {
	from := q.From.Role
	if q.Source.IsValid() {
		from += " (" + q.Source.String() + ")"
	}
	return fmt.Sprintf("%s to %s/%s", from, q.To, q.Protocol)
}

// Ask asks and waits for the answer. The connection is gone afterwards, without TIME_WAIT.
func Ask(q Question) Answer {
	switch q.Protocol {
	case source.SCTP:
		return askSCTP(q)
	case source.UDP:
		flow, err := NewFlow(q, freshPort())
		if err != nil {
			return failed(err)
		}
		defer flow.Close()
		return flow.Ask()
	}
	conn, answer := Connect(q)
	if conn != nil {
		conn.SetLinger(0)
		conn.Close()
	}
	return answer
}

// freshPort returns a port for one datagram. By chance a port that the kernel
// chose could be that of a flow that connection tracking still knows.
func freshPort() uint16 {
	const first, last = 10240, 29999 // above those of servers, below those that the kernel chooses
	return uint16(first + freshPorts.Add(1)%(last-first+1))
}

var freshPorts atomic.Int64

func (q Question) deadline() time.Time {
	return time.Now().Add(pace.Scale(cmp.Or(q.Patience, Patience)))
}

// source returns what the client binds its socket to.
func (q Question) source() netip.AddrPort {
	a := q.Source
	switch {
	case a.IsValid() || q.Port == 0:
	case q.To.Addr().Is4():
		a = netip.IPv4Unspecified()
	default:
		a = netip.IPv6Unspecified()
	}
	return netip.AddrPortFrom(a, q.Port)
}

// A Conn is a TCP connection to a server.
type Conn struct {
	*net.TCPConn
	Server Answer // who answered
	reader *bufio.Reader
}

// Connect makes a connection that lasts. It returns nil when nobody answered.
func Connect(q Question) (*Conn, Answer) {
	deadline := q.deadline()
	var tcp *net.TCPConn
	err := q.From.Do(func() (err error) {
		d := net.Dialer{Deadline: deadline, KeepAlive: -1}
		tcp, err = d.DialTCP(context.Background(), "tcp", q.source(), q.To)
		return err
	})
	if err != nil {
		return nil, failed(err)
	}
	tcp.SetReadDeadline(deadline)
	c := &Conn{TCPConn: tcp, reader: bufio.NewReader(tcp)}
	line, err := c.reader.ReadString('\n')
	if err != nil {
		tcp.SetLinger(0)
		tcp.Close()
		return nil, failed(err)
	}
	c.Server = parseAnswer(line)
	c.Server.Resent, c.Server.Local = c.resent(), portOf(tcp.LocalAddr())
	return c, c.Server
}

// resent reports whether a packet of the connection had to be sent again, which while it is made is a SYN.
func (c *Conn) resent() (again bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false // it is closed
	}
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		again = err == nil && info.Total_retrans > 0
	})
	return again
}

// Echo sends a line and waits for it to come back.
func (c *Conn) Echo(patience time.Duration) error {
	c.SetDeadline(time.Now().Add(pace.Scale(patience)))
	want := fmt.Sprintln("still there?", nonces.Add(1))
	if _, err := io.WriteString(c, want); err != nil {
		return fmt.Errorf("sending to %s: %w", c.Server.By, err)
	}
	got, err := c.reader.ReadString('\n')
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", c.Server.By, err)
	}
	if got != want {
		return fmt.Errorf("%s echoed %q, want %q", c.Server.By, got, want)
	}
	return nil
}

// nonces tell the answers to one datagram from those to another.
var nonces atomic.Int64

// A Flow is a UDP flow: datagrams from one port of the client to one address.
type Flow struct {
	*net.UDPConn
	question Question
}

// NewFlow opens a flow from a port; 0 takes a free one.
func NewFlow(q Question, port uint16) (*Flow, error) {
	q.Port = port
	f := &Flow{question: q}
	err := q.From.Do(func() (err error) {
		var d net.Dialer
		f.UDPConn, err = d.DialUDP(context.Background(), "udp", q.source(), q.To)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening UDP flow %s: %w", q, err)
	}
	return f, nil
}

// Ask sends one datagram and waits for its answer.
func (f *Flow) Ask() Answer { return f.AskLate(0) }

// lateRequest is how a datagram asks for its answer to be late, in nanoseconds.
const lateRequest = echotest.LateRequest

// AskLate is Ask for an answer that the server gives only after a while.
func (f *Flow) AskLate(late time.Duration) Answer {
	f.SetDeadline(f.question.deadline().Add(late))
	nonce := fmt.Sprintf(lateRequest+"%d\n", late, nonces.Add(1))
	if err := f.send(nonce); err != nil {
		return failed(err)
	}
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return failed(err)
		}
		if line, ok := bytes.CutSuffix(buf[:n], []byte(nonce)); ok {
			got := parseAnswer(strings.TrimSpace(string(line)))
			got.Local = portOf(f.LocalAddr())
			return got
		}
	}
}

// Tell sends one datagram that has no answer, and waits until one of the servers of n has it.
func (f *Flow) Tell(n *Network) Answer {
	f.SetDeadline(f.question.deadline())
	text := fmt.Sprintf(echotest.OneWayRequest+"%d\n", nonces.Add(1))
	got := make(chan string, 1)
	n.expected.Store(text, got)
	defer n.expected.Delete(text)
	if err := f.send(text); err != nil {
		return failed(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := f.Read(make([]byte, 1))
		refused <- err
	}()
	select {
	case err := <-refused:
		return failed(err)
	case who := <-got:
		f.SetReadDeadline(time.Now())
		<-refused
		a := parseAnswer(who)
		a.Local = portOf(f.LocalAddr())
		return a
	}
}

// send sends one datagram, once more where an earlier one was refused.
func (f *Flow) send(text string) error {
	_, err := io.WriteString(f, text)
	if errors.Is(err, unix.ECONNREFUSED) {
		_, err = io.WriteString(f, text)
	}
	if isOwnFirewall(err) {
		return nil
	}
	return err
}

// portOf returns the port of an address of TCP or UDP.
func portOf(a net.Addr) uint16 {
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Port()
}
