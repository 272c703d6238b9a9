package guest

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"svcproxy.dev/svcproxy/internal/pace"
)

// card is a guest's end of a network.
type card struct{ net.Conn }

func plug(t *testing.T, n *Network) card {
	t.Helper()
	file, err := n.join()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(pace.Scale(10 * time.Second)))
	t.Cleanup(func() { conn.Close() })
	return card{conn}
}

func (c card) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		t.Fatal(err)
	}
}

func (c card) expect(t *testing.T, frame []byte) {
	t.Helper()
	got, err := readFrame(c)
	if err != nil || !bytes.Equal(got[4:], frame) {
		t.Fatalf("received %d bytes, error %v; want %d bytes", len(got)-4, err, len(frame))
	}
}

// Frames of any size reach all others, in their order, and not their sender.
func TestNetwork(t *testing.T) {
	var n Network
	a, b, c := plug(t, &n), plug(t, &n), plug(t, &n)
	frames := [][]byte{[]byte("first"), bytes.Repeat([]byte("x"), 65_550), []byte("last")}
	for _, f := range frames {
		a.send(t, f)
	}
	for _, f := range frames {
		b.expect(t, f)
		c.expect(t, f)
	}
	b.send(t, []byte("answer"))
	a.expect(t, []byte("answer")) // and none of its own before
}

// A guest that takes nothing holds nobody up.
func TestNetworkWithAStuckGuest(t *testing.T) {
	var n Network
	a, b, _ := plug(t, &n), plug(t, &n), plug(t, &n)
	frame := make([]byte, 1500)
	for range 3 * queuedFrames {
		a.send(t, frame)
		b.expect(t, frame)
	}
}

// A guest that ends or sends nonsense is unplugged, the others go on, and nothing is left running at the end.
func TestNetworkWithoutAGuest(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	var n Network
	a, b, c, d := plug(t, &n), plug(t, &n), plug(t, &n), plug(t, &n)
	c.Close()
	if _, err := d.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after nonsense: %v, want the end", err)
	}
	a.send(t, []byte("frame"))
	b.expect(t, []byte("frame"))
	a.Close()
	b.Close()
	goleak.VerifyNone(t, leaks)
}
