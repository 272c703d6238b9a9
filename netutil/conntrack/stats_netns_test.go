//go:build netns

package conntrack_test

import (
	"net"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/conntrack"
)

// Ten source ports are for thirty flows.
func TestInsertFailedIsCounted(t *testing.T) {
	namespace(t, translation+`nft add chain ip nat postrouting { type nat hook postrouting priority 100; }
nft add rule ip nat postrouting meta l4proto { tcp, udp } masquerade to :2001-2010 fully-random
`)
	for _, tt := range []struct {
		flows int
		want  uint64
	}{{10, 0}, {20, 20}} {
		for range tt.flows {
			c, err := net.Dial("udp", "10.96.0.1:53")
			fatal.If(t, err)
			defer c.Close()
			_, _ = c.Write([]byte("x")) // EPERM where it is dropped
		}
		got, err := conntrack.InsertFailed(t.Context())
		if err != nil || got != tt.want {
			t.Errorf("after %d more flows: %d, %v, want %d", tt.flows, got, err, tt.want)
		}
	}
}
