package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
)

// How many questions are answered at once; more wait for their turn. Who may only read
// cannot take all of them: root has a rollback or a drain answered beside any number of others.
const (
	maxAnswers       = 16 // of everyone
	maxReaderAnswers = 12 // of all who may only read
	maxUserAnswers   = 6  // of one user who may only read
)

// How many connections are open at once, with those that wait; more are closed.
const (
	maxReaderConns = 128 // of all who may only read
	maxUserConns   = 32  // of one user who may only read
	maxWriterConns = 64  // of who may change something
)

// A crowd counts what there is of peers: all of it, what is of those who may only read, and of each of them.
// The zero value is an empty one.
type crowd struct {
	writers, readers int
	users            map[uint32]int // that may only read
}

// add counts one more, or one less, of p.
func (c *crowd) add(p Peer, n int) {
	if p.writes {
		c.writers += n
		return
	}
	if c.users == nil {
		c.users = map[uint32]int{}
	}
	c.readers += n
	if c.users[p.UID] += n; c.users[p.UID] == 0 {
		delete(c.users, p.UID)
	}
}

// turns has questions answered in turn. The zero value is ready for use.
type turns struct {
	mu    sync.Mutex
	taken crowd
	freed chan struct{} // closed when a turn ends; nil: nobody waits
}

var errEnds = errors.New("it had not begun to answer")

// handler has h answer a question when it is its turn.
func (t *turns) handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		peer, _ := req.Context().Value(peerKey{}).(Peer)
		if !t.wait(req.Context(), peer) {
			reply(w, req, nil, errEnds) // or the client has gone, and nobody reads it
			return
		}
		defer t.end(peer)
		h.ServeHTTP(w, req)
	})
}

// wait waits for p's turn, and reports whether that came before ctx ended.
func (t *turns) wait(ctx context.Context, p Peer) bool {
	for ctx.Err() == nil { // those who wait are many, and none begins once the daemon ends
		freed := t.begin(p)
		if freed == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-freed:
		}
	}
	return false
}

// begin takes a turn and returns nil, or returns what is closed when one ends.
func (t *turns) begin(p Peer) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := &t.taken; c.readers+c.writers < maxAnswers && (p.writes || c.readers < maxReaderAnswers && c.users[p.UID] < maxUserAnswers) {
		c.add(p, 1)
		return nil
	}
	if t.freed == nil {
		t.freed = make(chan struct{})
	}
	return t.freed
}

// end gives p's turn to others.
func (t *turns) end(p Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken.add(p, -1)
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// A peerListener has connections that know who is at their other end, and closes those
// that are too many.
type peerListener struct {
	*net.UnixListener

	mu   sync.Mutex
	open crowd
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if peer := peerOf(conn); l.enter(peer) {
			return &peerConn{Conn: conn, peer: peer, leave: sync.OnceFunc(func() { l.leave(peer) })}, nil
		}
		conn.Close()
	}
}

// enter counts a connection, unless there are too many.
func (l *peerListener) enter(p Peer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := l.open.writers < maxWriterConns
	if !p.writes {
		room = l.open.readers < maxReaderConns && l.open.users[p.UID] < maxUserConns
	}
	if room {
		l.open.add(p, 1)
	}
	return room
}

func (l *peerListener) leave(p Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open.add(p, -1)
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
