//go:build netns

package lab

import (
	"net/netip"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
)

var strayGroups = []group{{
	name:  "stray segments",
	cases: []testCase{{name: "out of the window", run: testOutOfWindow}},
}}

// testOutOfWindow: a segment that its endpoint sends far outside the window, as
// one that was under way for long, ends no connection: of a client whose address
// is masqueraded, or is not, of node itself.
func testOutOfWindow(t *testing.T, e *env) {
	s := e.everywhere(at(e.Local[0])...)
	s.ExternalTrafficPolicy = "local"
	e.apply(t, s)
	if _, err := e.daemon.Command("init"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from *Host
		to   Dual
	}{{e.Client, e.vip(1)}, {e.Client, e.external(1)}, {e.Node, e.vip(1)}} {
		for _, addr := range c.to.Each() {
			for _, shift := range []int32{-1 << 28, 1 << 28} {
				e.strayFrom(t, Question{From: c.from, Protocol: source.TCP, To: netip.AddrPortFrom(addr, 80)}, shift)
			}
		}
	}
}

// strayFrom lets the endpoint send a segment of an established connection again,
// as if from elsewhere in the stream.
func (e *env) strayFrom(t *testing.T, q Question, shift int32) {
	t.Helper()
	conn, got := Connect(q)
	if conn == nil {
		t.Fatalf("%s: %s", q, got)
	}
	defer conn.Close()
	wire, err := Tap(e.Local[0], "eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer wire.Close()
	if err := conn.Echo(expectPatience); err != nil {
		t.Fatal(err)
	}
	segment, err := wire.Next(8080, expectPatience)
	if err != nil {
		t.Fatal(err)
	}
	segment.Shift(shift)
	if err := wire.Send(segment); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // a reset takes 1 ms
	if err := conn.Echo(expectPatience); err != nil {
		t.Errorf("%s, after a segment %d bytes off: %v", q, shift, err)
	}
}
