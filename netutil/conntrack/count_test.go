package conntrack

import (
	"net/netip"
	"testing"
)

// A kernel that does not filter sends everything: what was not translated is passed over.
func TestCountedIsTranslated(t *testing.T) {
	vip, endpoint := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("192.0.2.1:8080")
	for _, tt := range []struct {
		status uint32
		reply  netip.AddrPort
		want   bool
	}{
		{destinationTranslated | seenReply, endpoint, true},
		{seenReply, endpoint, false},
		{destinationTranslated, vip, false},
	} {
		e := entry{Connection: Connection{Dst: vip, Reply: tt.reply}, status: tt.status}
		e.conclude()
		if got := e.Translated; got != tt.want {
			t.Errorf("status %#x, reply from %v: translated %t", tt.status, tt.reply, got)
		}
	}
}
