package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"golang.org/x/sys/unix"
)

// maxQuestion is how long the body of a question may be, in bytes.
const maxQuestion = 1 << 20

// Routes are what a Server answers. Get and Post add to them.
type Routes struct{ mux http.ServeMux }

// Get has GET path answered with what answer returns, as JSON. Its error is told to the client.
func Get[A any](r *Routes, path string, answer func(context.Context, url.Values) (A, error)) {
	r.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, req *http.Request) {
		a, err := answer(req.Context(), req.URL.Query())
		reply(w, a, err)
	})
}

// Post has POST path answered in the same way. The body is a Q in JSON, at most 1 MiB of it.
func Post[Q, A any](r *Routes, path string, answer func(context.Context, Peer, Q) (A, error)) {
	r.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, req *http.Request) {
		var q Q
		peer, _ := req.Context().Value(peerKey{}).(Peer)
		err := peer.err
		if err == nil {
			err = json.NewDecoder(http.MaxBytesReader(w, req.Body, maxQuestion)).Decode(&q)
		}
		if err != nil {
			reply(w, nil, fmt.Errorf("reading the question: %w", err))
			return
		}
		a, err := answer(req.Context(), peer, q)
		reply(w, a, err)
	})
}

// A failure is an error on its way to the client.
type failure struct {
	Error string `json:"error"`
}

// reply writes an answer or an error. The client may be gone; there is nobody else to tell.
func reply(w http.ResponseWriter, answer any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		answer = failure{err.Error()}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// A Peer is the process that asks, as the kernel knows it.
type Peer struct {
	PID int
	UID uint32

	err error // why it is not known
}

// Network and String make it the address of its end of the connection.
func (Peer) Network() string  { return "unix" }
func (p Peer) String() string { return fmt.Sprintf("process %d of user %d", p.PID, p.UID) }

type peerKey struct{}

// withPeer notes who is at the other end of a connection.
func withPeer(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, conn.RemoteAddr())
}

// A peerListener has connections that know who is at their other end.
type peerListener struct{ *net.UnixListener }

// Accept implements net.Listener.
func (l peerListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	cred, err := credentials(conn)
	if err != nil {
		return peerConn{conn, Peer{err: err}}, nil
	}
	return peerConn{conn, Peer{PID: int(cred.Pid), UID: cred.Uid}}, nil
}

type peerConn struct {
	net.Conn
	peer Peer
}

// RemoteAddr returns the Peer.
func (c peerConn) RemoteAddr() net.Addr { return c.peer }

// credentials returns who is at the other end of a unix socket.
func credentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, cmp.Or(err, failed)
}
