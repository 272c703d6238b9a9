package trace

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/source"
)

// testTuple is that of the i-th connection.
func testTuple(i int) tuple {
	return tuple{netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), uint16(i)), netip.MustParseAddrPort("10.96.0.10:80"), source.TCP}
}

// Connections that there is no room for are told as a number, once.
func TestFullOfPending(t *testing.T) {
	var notes []string
	w := &watcher{pending: make(map[[2]uint32]*sighting)}
	w.Note = func(text string) { notes = append(notes, text) }
	for i := range maxPending + 3 {
		w.begin([2]uint32{2, uint32(i)}, new(nft.LoggedPacket), testTuple(i))
	}
	w.reportIgnored()
	w.reportIgnored()
	if want := []string{"3 connections were left out: of 4096 others more is to come"}; len(w.pending) != maxPending || !slices.Equal(notes, want) {
		t.Errorf("%d pending, told %q, want %q", len(w.pending), notes, want)
	}
}

// Of a connection that was told no trace is remembered, nor more of one than there is room for.
func TestTracesAreForgotten(t *testing.T) {
	packet := []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 203, 0, 113, 9, 10, 96, 0, 10, 0, 7, 0, 80}
	s := &sighting{number: [2]uint32{2, 1}, conn: testTuple(7)}
	w := &watcher{pending: map[[2]uint32]*sighting{s.number: s}, byID: make(map[uint32]*sighting)}
	for id := range uint32(2 * maxSteps) {
		w.traced(&nft.Trace{Table: nft.Table{Family: 2, Name: "filter"}, Chain: "input", ID: id, Network: packet[:20], Transport: packet[20:]})
	}
	if len(s.steps) == 0 || len(w.byID) != maxSteps {
		t.Errorf("%d steps, %d traces, want %d", len(s.steps), len(w.byID), maxSteps)
	}
	if w.forget(s); len(w.byID) > 0 {
		t.Errorf("%d traces are left", len(w.byID))
	}
}

// The name of an interface costs the same however many there are.
func TestInterfaceName(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	fatal.If(t, err)
	if a, b, c := interfaceName(lo.Index), interfaceName(0), interfaceName(1<<30); a != "lo" || b != "" || c != "interface 1073741824" {
		t.Errorf("got %q, %q and %q", a, b, c)
	}
	if n := testing.AllocsPerRun(100, func() { interfaceName(lo.Index) }); n > 4 {
		t.Errorf("%g allocations: is there a listing?", n)
	}
}

// Packets that come while the counters are read are no reason to take many for left out.
func TestPacketsDuringCountersAreNotLeftOut(t *testing.T) {
	for _, tt := range []struct{ all, chosen, want uint64 }{{0, 0, 0}, {300, 200, 100}, {200, 200, 0}, {199, 200, 0}} {
		if got := leftOut(tt.all, tt.chosen); got != tt.want {
			t.Errorf("of %d, %d chosen: %d left out, want %d", tt.all, tt.chosen, got, tt.want)
		}
	}
}
