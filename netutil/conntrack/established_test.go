package conntrack

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel does not say the state of a connection that is in a flow table.
func TestEstablishedStatus(t *testing.T) {
	for _, tt := range []struct {
		proto  uint8
		status uint32
		want   bool
	}{
		{unix.IPPROTO_TCP, seenReply, false},
		{unix.IPPROTO_TCP, seenReply | offloaded, true},
		{unix.IPPROTO_TCP, offloaded, false},
		{unix.IPPROTO_UDP, seenReply, true},
		{unix.IPPROTO_UDP, 0, false},
	} {
		e := entry{status: tt.status}
		e.Protocol = tt.proto
		e.conclude()
		if got := e.Established; got != tt.want {
			t.Errorf("protocol %d, status %#x: %v, want %v", tt.proto, tt.status, got, tt.want)
		}
	}
}
