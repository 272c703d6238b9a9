//go:build netns

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/pace"
	"svcproxy.dev/svcproxy/source"
)

// bulkPort is where endpoints answer with a bulk, as soon as the client has closed its side.
const bulkPort = 8090

// bulk is more than the buffers of both sockets hold while the client reads slowly.
var bulk = func() []byte {
	b := make([]byte, 0, 4<<20)
	for len(b) < 4<<20 {
		b = fmt.Appendf(b, "%07d\n", len(b))
	}
	return b
}()

// serveBulk starts servers for the case: they say who they are, as all do, read to the end, and send the bulk.
func (e *env) serveBulk(t *testing.T, hosts ...*Host) {
	for _, h := range hosts {
		l := listen(t, h, bulkPort)
		t.Cleanup(func() { l.Close() })
		e.servers.Accept(l, func(conn net.Conn) {
			fmt.Fprintln(conn, h.Role, bulkPort, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
			if _, err := io.Copy(io.Discard, conn); err == nil {
				_, _ = conn.Write(bulk) // the client tells what is missing
			}
		})
	}
}

// testHalfClosed: clients that have closed their side receive the whole answer, although their endpoint leaves in
// the middle of it.
func testHalfClosed(change func(*testing.T, *env, Service)) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		e.serveBulk(t, e.Remote[:2]...)
		s := e.everywhere(at(e.Remote[:2]...)...)
		s.Ports[0].TargetPort = bulkPort
		e.apply(t, s)
		var all []*samePort
		for _, c := range e.sameAddresses() {
			c.protocols = []source.Protocol{source.TCP}
			for _, q := range c.questions() {
				all = append(all, e.samePort(t, q))
			}
		}
		changed, errs := make(chan struct{}), make([]error, len(all))
		var begun, ended sync.WaitGroup
		begun.Add(len(all))
		ended.Go(func() {
			each(all, func(i int, c *samePort) { errs[i] = c.receiveBulk(begun.Done, changed) })
		})
		func() {
			defer close(changed)
			begun.Wait()
			change(t, e, s)
			e.expect(t, check{from: e.Client, to: e.vip(1), protocols: []source.Protocol{source.TCP}, want: by(e.Remote[1])})
			time.Sleep(pace.Scale(movesWithin))
		}()
		ended.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	}
}

// receiveBulk closes the client's side, receives some of the answer, then a little at a time until the change is
// over, and then all the rest.
func (c *samePort) receiveBulk(begun func(), changed <-chan struct{}) error {
	const first, piece = 256 << 10, 4 << 10
	received := make([]byte, 0, len(bulk))
	read := func(n int) error {
		got, err := io.ReadFull(c.conn.reader, received[len(received):len(received)+n])
		received = received[:len(received)+got]
		return err
	}
	c.conn.SetReadBuffer(first)
	c.conn.SetDeadline(time.Now().Add(pace.Scale(2 * expectPatience)))
	err := errors.Join(c.conn.CloseWrite(), read(first))
	begun()
	for isOver := false; err == nil && !isOver; {
		select {
		case <-changed:
			isOver = true
		case <-time.After(5 * time.Millisecond):
			if len(received) < len(bulk)/2 {
				err = read(piece)
			}
		}
	}
	if err == nil {
		err = read(len(bulk) - len(received))
	}
	if err == nil {
		_, err = c.conn.reader.ReadByte()
	}
	if !errors.Is(err, io.EOF) || !bytes.Equal(received, bulk) {
		return fmt.Errorf("%s from port %d: %d of %d bytes, then %v, want all of them", c.question, c.question.Port, len(received), len(bulk), err)
	}
	return nil
}
