package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// serverIdle closes a connection of a server that was forgotten. No case lasts as long.
const serverIdle = 10 * time.Minute

// servers are the sockets of all servers of a lab and the goroutines behind them.
type servers struct {
	mu      sync.Mutex
	closed  bool
	sockets map[io.Closer]struct{}
	wg      sync.WaitGroup
}

// run starts fn, whose socket c is closed when the servers are.
func (s *servers) run(c io.Closer, fn func()) {
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

func (s *servers) close() {
	s.mu.Lock()
	s.closed = true
	for c := range s.sockets {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Serve starts a TCP and a UDP server on h. Each says who it is, "name port
// source", and then echoes: TCP after a connection was made, UDP at the head of
// every datagram, which may ask for a late answer. An unspecified address serves
// both families.
func (l *Lab) Serve(h *Host, at netip.AddrPort) error {
	return h.Do(func() error {
		lc := net.ListenConfig{}
		lc.SetMultipathTCP(false)
		stream, err := lc.Listen(context.Background(), "tcp", at.String())
		if err != nil {
			return fmt.Errorf("serving on %s: %w", h.Role, err)
		}
		packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			stream.Close()
			return fmt.Errorf("serving on %s: %w", h.Role, err)
		}
		l.servers.run(stream, func() { l.accept(h.Role, stream) })
		l.servers.run(packets, func() { answerPackets(h.Role, packets) })
		return nil
	})
}

func (l *Lab) accept(name string, stream net.Listener) {
	for {
		conn, err := stream.Accept()
		if err != nil {
			return
		}
		l.servers.run(conn, func() {
			conn.SetDeadline(time.Now().Add(serverIdle))
			local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
			fmt.Fprintln(conn, name, local.Port, remote.AddrPort().Addr().Unmap())
			io.Copy(conn, conn)
		})
	}
}

func answerPackets(name string, conn *net.UDPConn) {
	port := conn.LocalAddr().(*net.UDPAddr).Port
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		answer := append(fmt.Appendln(nil, name, port, from.Addr().Unmap()), buf[:n]...)
		var late time.Duration
		if fmt.Sscanf(string(buf[:n]), lateRequest, &late); late > 0 {
			time.AfterFunc(late, func() { conn.WriteToUDPAddrPort(answer, from) })
			continue
		}
		conn.WriteToUDPAddrPort(answer, from)
	}
}

// lateRequest is how a datagram asks for its answer to be late, in nanoseconds.
const lateRequest = "answer after %d ns "
