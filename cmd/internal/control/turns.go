package control

import (
	"errors"
	"net"
	"net/http"
	"sync"
)

// How many questions are answered at once; more wait for their turn. Those who may only read cannot
// take all turns: root has a rollback or a drain answered beside any number of them.
const (
	maxReaderAnswers = 12
	maxWriterAnswers = 4
)

// How many connections are open at once, with those that wait; more are closed.
const (
	maxReaderConns = 128
	maxWriterConns = 64
)

// turns has questions answered in turn.
type turns struct{ readers, writers chan struct{} } // each has an element for each question that is answered

func newTurns() *turns {
	return &turns{make(chan struct{}, maxReaderAnswers), make(chan struct{}, maxWriterAnswers)}
}

var errEnds = errors.New("it had not begun to answer")

// handler has h answer a question when it is its turn.
func (t *turns) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		taken := t.readers
		if peer, _ := req.Context().Value(peerKey{}).(Peer); peer.writes {
			taken = t.writers
		}
		select {
		case <-req.Context().Done():
		case taken <- struct{}{}:
			defer func() { <-taken }()
		}
		if req.Context().Err() != nil { // those who wait are many, and none begins once the daemon ends
			reply(w, req, nil, errEnds) // or the client has gone, and nobody reads it
			return
		}
		h.ServeHTTP(w, req)
	})
}

// A peerListener has connections that know who is at their other end, and closes those
// that are too many.
type peerListener struct {
	*net.UnixListener

	mu               sync.Mutex
	readers, writers int // connections that are open
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer := peerOf(conn); l.count(peer, 1) {
			return &peerConn{Conn: conn, peer: peer, leave: sync.OnceFunc(func() { l.count(peer, -1) })}, nil
		}
		conn.Close()
	}
}

// count counts one connection more or less, unless there are too many.
func (l *peerListener) count(p Peer, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open, most := &l.readers, maxReaderConns
	if p.writes {
		open, most = &l.writers, maxWriterConns
	}
	if *open+n > most {
		return false
	}
	*open += n
	return true
}

// A peerConn knows who is at its other end.
type peerConn struct {
	net.Conn
	peer  Peer
	leave func()
}

// RemoteAddr returns the Peer.
func (c *peerConn) RemoteAddr() net.Addr { return c.peer }

// Close implements net.Conn.
func (c *peerConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
