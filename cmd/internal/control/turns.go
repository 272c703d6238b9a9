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

// turns bound how many have one at once. Each has an element for each that has.
type turns struct{ readers, writers chan struct{} }

func newTurns(readers, writers int) turns {
	return turns{make(chan struct{}, readers), make(chan struct{}, writers)}
}

// of returns the turns that a peer is given.
func (t turns) of(p Peer) chan struct{} {
	if p.writes {
		return t.writers
	}
	return t.readers
}

var errEnds = errors.New("it had not begun to answer")

// handler has h answer a question when it is its turn.
func (t turns) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		peer, _ := req.Context().Value(peerKey{}).(Peer)
		taken := t.of(peer)
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
	open turns
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		peer := peerOf(conn)
		open := l.open.of(peer)
		select {
		case open <- struct{}{}:
			return &peerConn{Conn: conn, peer: peer, leave: sync.OnceFunc(func() { <-open })}, nil
		default:
			conn.Close()
		}
	}
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
