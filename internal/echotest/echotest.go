// Package echotest holds the servers that tests connect to: they say who they are,
// and then echo.
package echotest

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// idle closes a connection of a server that was forgotten. No test lasts as long.
const idle = time.Hour

// Servers are the sockets of all servers of a test and the goroutines behind them.
type Servers struct {
	// Heard is called with what a server would have answered to a datagram that begins with OneWayRequest.
	// Set it before Serve. Many goroutines call it.
	Heard func(answer []byte)

	mu      sync.Mutex
	closed  bool
	sockets map[io.Closer]struct{}
	wg      sync.WaitGroup
}

// Run starts fn, whose socket c is closed when the servers are.
func (s *Servers) Run(c io.Closer, fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		c.Close()
		return
	}
	if s.sockets == nil {
		s.sockets = make(map[io.Closer]struct{})
	}
	s.sockets[c] = struct{}{}
	s.wg.Go(func() {
		fn()
		c.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.sockets, c)
	})
}

// Close ends all servers.
func (s *Servers) Close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.sockets {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Serve starts a TCP and a UDP server. Each says who it is, "name port source",
// and then echoes: TCP after a connection was made, UDP at the head of every
// datagram, which may ask for a late answer or for none. An unspecified address serves both
// families. The servers are in the network namespace of the caller.
func (s *Servers) Serve(name string, at netip.AddrPort) error {
	stream, err := Listen(at.String())
	if err != nil {
		return fmt.Errorf("serving on %s: %w", name, err)
	}
	packets, err := listenUDP(at)
	if err != nil {
		stream.Close()
		return fmt.Errorf("serving on %s: %w", name, err)
	}
	s.Accept(stream, func(conn net.Conn) { greet(name, conn) })
	s.Run(packets, func() { s.answerPackets(name, packets) })
	return nil
}

// Accept has serve called for each connection, in a goroutine of its own, until the servers are closed.
func (s *Servers) Accept(l net.Listener, serve func(net.Conn)) {
	s.Run(l, func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.Run(conn, func() {
				conn.SetDeadline(time.Now().Add(idle))
				serve(conn)
			})
		}
	})
}

// Echo sends back what a connection sends.
func Echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

func greet(name string, conn net.Conn) {
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	fmt.Fprintln(conn, name, local.Port, remote.AddrPort().Addr().Unmap())
	Echo(conn)
}

func (s *Servers) answerPackets(name string, conn *net.UDPConn) {
	port := conn.LocalAddr().(*net.UDPAddr).Port
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		answer := append(fmt.Appendln(nil, name, port, from.Addr().Unmap()), buf[:n]...)
		if s.Heard != nil && bytes.HasPrefix(buf[:n], []byte(OneWayRequest)) {
			s.Heard(answer)
			continue
		}
		var late time.Duration
		if fmt.Sscanf(string(buf[:n]), LateRequest, &late); late > 0 {
			time.AfterFunc(late, func() { conn.WriteToUDPAddrPort(answer, from) })
			continue
		}
		conn.WriteToUDPAddrPort(answer, from)
	}
}

// LateRequest is how a datagram asks for its answer to be late, in nanoseconds; one that begins with
// OneWayRequest wants no answer.
const (
	LateRequest   = "answer after %d ns "
	OneWayRequest = "no answer "
)

// A Conn is a connection to a TCP server.
type Conn struct {
	*net.TCPConn
	Server string // its name
	r      *bufio.Reader
}

// Dial connects and waits until the server has said who it is.
func Dial(d *net.Dialer, to string) (*Conn, error) {
	dialed, err := d.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	c := &Conn{TCPConn: dialed.(*net.TCPConn), r: bufio.NewReader(dialed)}
	c.SetDeadline(time.Now().Add(d.Timeout))
	line, err := c.r.ReadString('\n')
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("connected to %s, but no answer: %w", to, err)
	}
	c.Server, _, _ = strings.Cut(line, " ")
	return c, nil
}

// Echo sends a line and waits for it to come back.
func (c *Conn) Echo(line string, patience time.Duration) error {
	c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	got, err := c.r.ReadString('\n')
	if err == nil && got != line+"\n" {
		err = fmt.Errorf("sent %q, received %q", line, got)
	}
	return err
}
