package control

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// However many questions readers ask at once, those who may change something are answered. Who waits has the turn
// that ends, or gives up.
func TestTurns(t *testing.T) {
	answering, begun, ends := newTurns(), make(chan bool), make(chan bool)
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

func TestConnectionsAreBounded(t *testing.T) {
	var l peerListener
	enter := func(p Peer) (n int) {
		for l.count(p, 1) {
			n++
		}
		return n
	}
	if n := enter(Peer{UID: 1000}); n != maxReaderConns {
		t.Errorf("readers have %d connections, want %d", n, maxReaderConns)
	}
	if n := enter(Peer{writes: true}); n != maxWriterConns {
		t.Errorf("root has %d connections, want %d", n, maxWriterConns)
	}
	if l.count(Peer{UID: 1000}, -1); !l.count(Peer{UID: 1001}, 1) {
		t.Error("a connection that ended counts still")
	}
}
