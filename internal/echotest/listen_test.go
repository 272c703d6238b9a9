package echotest

import (
	"net"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/internal/fatal"
)

// A listener that was closed, and that a program which is being started still holds, is waited for.
func TestListenAgainWaitsForTheOldListener(t *testing.T) {
	first, err := Listen("127.0.0.1:0")
	fatal.If(t, err)
	held, err := first.(*net.TCPListener).File()
	fatal.If(t, err)
	first.Close()
	if l, err := net.Listen("tcp", first.Addr().String()); err == nil {
		l.Close()
		t.Fatal("nothing held the address")
	}
	time.AfterFunc(50*time.Millisecond, func() { held.Close() })
	second, err := Listen(first.Addr().String())
	fatal.If(t, err)
	second.Close()
}
