package policy_test

import (
	"net/netip"
	"testing"
	"unsafe"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// A target is what it was made of, and small: a State has one for each endpoint of each pool.
func TestTarget(t *testing.T) {
	for _, s := range []string{"0.0.0.0:1", "10.0.0.1:80", "255.255.255.255:65535", "[::1]:80", "[2001:db8::ffff:a00:1]:80"} {
		at := netip.MustParseAddrPort(s)
		got := policy.NewTarget(at, 7)
		if got.AddrPort() != at || got.Addr() != at.Addr() || got.Port() != at.Port() || got.String() != s || got.Weight != 7 {
			t.Errorf("%s is %v", s, got)
		}
	}
	if size := unsafe.Sizeof(policy.Target{}); size > 24 {
		t.Errorf("a target takes %d bytes, want 24 at most", size)
	}
	if size := unsafe.Sizeof(policy.Hairpin{}); size > 24 {
		t.Errorf("a hairpin takes %d bytes, want 24 at most", size)
	}
}
