package control

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// However many questions readers ask at once, those who may change something are answered. Who waits has the turn
// that ends, or gives up.
func TestTurnsLeaveRoomForChanges(t *testing.T) {
	answering, begun, ends := newTurns(maxReaderAnswers, maxWriterAnswers), make(chan bool), make(chan bool)
	h := answering.handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		begun <- true
		<-ends
	}))
	ask := func(ctx context.Context, p Peer) (code int) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(context.WithValue(ctx, peerKey{}, p), http.MethodGet, "/", http.NoBody))
		return w.Code
	}
	codes := make(chan int)
	for _, p := range []Peer{{UID: 1000}, {writes: true}} {
		most := maxReaderAnswers
		if p.writes {
			most = maxWriterAnswers
		}
		for range most + 1 {
			go func() { codes <- ask(t.Context(), p) }()
		}
		for range most {
			<-begun
		}
	}
	gone, stop := context.WithCancel(t.Context())
	stop()
	if code := ask(gone, Peer{}); code != http.StatusServiceUnavailable {
		t.Errorf("who has gone is told %d", code)
	}
	select {
	case <-begun:
		t.Fatal("one is answered beyond the bound")
	default:
	}
	for range maxReaderAnswers + maxWriterAnswers + 2 {
		select {
		case ends <- true:
		case <-begun: // one that waited
			ends <- true
		}
	}
	for range maxReaderAnswers + maxWriterAnswers + 2 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("one is told %d", code)
		}
	}
}

// The server closes connections beyond the bound and accepts the next one when one ends. The client may write.
func TestConnectionsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	unix, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	fatal.If(t, err)
	defer unix.Close()
	l := &peerListener{unix, newTurns(maxReaderConns, maxWriterConns)}
	accepted := make(chan net.Conn)
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			accepted <- conn
		}
	}()
	connect := func() net.Conn {
		conn, err := net.Dial("unix", path)
		fatal.If(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var first net.Conn
	for range maxWriterConns {
		connect()
		first = <-accepted
	}
	if _, err := connect().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one beyond the bound: %v, want that it is closed", err)
	}
	if len(l.open.readers) != 0 {
		t.Errorf("%d count as readers", len(l.open.readers))
	}
	fatal.If(t, first.Close())
	first.Close()
	connect()
	<-accepted
	if _, err := connect().Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one beyond the bound, after another had ended: %v", err)
	}
}
