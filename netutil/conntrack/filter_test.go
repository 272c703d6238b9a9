package conntrack_test

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// Few entries are listed at once, and many once for each address.
func TestWalksOfFilters(t *testing.T) {
	vips := func(n int) (list []netip.AddrPort) {
		for i := range n {
			list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80))
		}
		return list
	}
	for _, tt := range []struct {
		to      int
		entries uint32
		want    int
	}{
		{0, 0, 1}, {0, 250_000, 1}, {1, 0, 1}, {1, 250_000, 1}, {2, 10_000, 1}, {2, 10_001, 2}, {3, 20_000, 1}, {3, 250_000, 3},
		{5, 250_000, 1},
	} {
		if got := (conntrack.Query{To: vips(tt.to)}).Walks(tt.entries); got != tt.want {
			t.Errorf("%d addresses, %d entries: %d walks, want %d", tt.to, tt.entries, got, tt.want)
		}
	}
}
