package control

import (
	"context"
	"testing"
)

// take has p take turns until there is none, and returns how many it got.
func take(t *turns, p Peer) (n int) {
	for t.begin(p) == nil {
		n++
	}
	return n
}

// However many questions readers ask at once, others are answered.
func TestTurnsAreShared(t *testing.T) {
	var ts turns
	for i, want := range []int{maxUserAnswers, maxReaderAnswers - maxUserAnswers, 0} {
		if n := take(&ts, Peer{UID: uint32(1000 + i)}); n != want {
			t.Errorf("reader %d has %d turns, want %d", i, n, want)
		}
	}
	if n := take(&ts, Peer{writes: true}); n != maxAnswers-maxReaderAnswers {
		t.Errorf("root has %d turns, want %d", n, maxAnswers-maxReaderAnswers)
	}
}

// Who waits has the turn that ends, or gives up.
func TestTurnsEnd(t *testing.T) {
	var ts turns
	one, other := Peer{UID: 1000}, Peer{UID: 1001}
	take(&ts, one)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	wait := func() { done <- ts.wait(ctx, one) }
	freed := ts.begin(one)
	go wait()
	ts.end(one)
	<-freed
	if !<-done {
		t.Error("who waited has no turn")
	}
	go wait()
	cancel()
	if <-done {
		t.Error("who gave up has a turn")
	}
	for range maxUserAnswers {
		ts.end(one)
	}
	if ts.wait(ctx, one) {
		t.Error("one has a turn after the daemon has ended")
	}
	if n := take(&ts, other); n != maxUserAnswers || len(ts.taken.users) != 1 {
		t.Errorf("the next one has %d turns; counted: %v", n, ts.taken.users)
	}
}

func TestConnectionsAreShared(t *testing.T) {
	var l peerListener
	enter := func(p Peer) (n int) {
		for l.enter(p) {
			n++
		}
		return n
	}
	if n := enter(Peer{UID: 1000}); n != maxUserConns {
		t.Errorf("a reader has %d connections, want %d", n, maxUserConns)
	}
	for uid := range uint32(10) {
		enter(Peer{UID: 2000 + uid})
	}
	if l.open.readers != maxReaderConns {
		t.Errorf("readers have %d connections, want %d", l.open.readers, maxReaderConns)
	}
	if n := enter(Peer{writes: true}); n != maxWriterConns {
		t.Errorf("root has %d connections, want %d", n, maxWriterConns)
	}
	if l.leave(Peer{UID: 1000}); !l.enter(Peer{UID: 1000}) {
		t.Error("a connection that ended counts still")
	}
}
