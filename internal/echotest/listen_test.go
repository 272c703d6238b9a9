package echotest

import (
	"net"
	"testing"
	"time"
)

// A listener that was closed, and that a program which is being started still holds, is waited for.
func TestListenAgainWaitsForTheOldListener(t *testing.T) {
	first, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	held, err := first.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	if l, err := net.Listen("tcp", first.Addr().String()); err == nil {
		l.Close()
		t.Fatal("nothing held the address")
	}
	time.AfterFunc(50*time.Millisecond, func() { held.Close() })
	second, err := Listen(first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}
