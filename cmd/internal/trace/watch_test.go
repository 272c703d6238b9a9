package trace

import (
	"net/netip"
	"slices"
	"testing"

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
	w := &watcher{pending: make(map[number]*sighting)}
	w.Note = func(text string) { notes = append(notes, text) }
	for i := range maxPending + 3 {
		w.begin(number{2, uint32(i)}, new(nft.LoggedPacket), testTuple(i))
	}
	w.noteIgnored()
	w.noteIgnored()
	if want := []string{"3 connections were left out: of 4096 others more is to come"}; len(w.pending) != maxPending || !slices.Equal(notes, want) {
		t.Errorf("%d pending, told %q, want %q", len(w.pending), notes, want)
	}
}
