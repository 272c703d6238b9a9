//go:build netns

package filter

import (
	"context"
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/netnstest"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A frontend is restricted when its ranges are there, and not after they have gone: here they cannot
// be written.
func TestRangesBeforeRestrictions(t *testing.T) {
	netnstest.Enter(t)
	ctx := context.Background()
	k, err := Open(ctx, policy.IPv4)
	fatal.If(t, err)
	t.Cleanup(func() { k.Close() })
	e := ipset.Entry{Addr: netip.MustParseAddr("192.0.2.1"), Protocol: uint8(source.TCP), Port: 80}
	ranged := e
	ranged.Net = netip.MustParsePrefix("198.51.100.0/24")
	both := map[string][]ipset.Entry{"SVCP-RANGES-4": {ranged}, "SVCP-FIREWALLED-4": {e}}
	has := func(set string) bool {
		l, err := k.sets.List(ctx, set)
		fatal.If(t, err)
		return len(l.Entries) > 0
	}
	command(t, "ipset", "create", "SVCP-FIREWALLED-4", "hash:ip,port")
	for range 20 { // the order was a random one
		if err := k.write(ctx, &difference{gained: both}); err == nil || has("SVCP-FIREWALLED-4") {
			t.Fatalf("restricted without ranges: %v, error %v", has("SVCP-FIREWALLED-4"), err)
		}
	}
	command(t, "ipset", "destroy", "SVCP-FIREWALLED-4")
	command(t, "ipset", "create", "SVCP-RANGES-4", "hash:ip,port,net")
	command(t, "ipset", "add", "SVCP-RANGES-4", "192.0.2.1,tcp:80,198.51.100.0/24")
	for range 20 {
		if err := k.write(ctx, &difference{lost: both}); err == nil || !has("SVCP-RANGES-4") {
			t.Fatalf("the ranges are left: %v, error %v", has("SVCP-RANGES-4"), err)
		}
	}
}
