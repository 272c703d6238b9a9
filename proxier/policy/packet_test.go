package policy_test

import (
	"net/netip"
	"testing"

	"svcproxy.dev/svcproxy/proxier/policy"
)

func TestSenderOfPackets(t *testing.T) {
	h := &policy.Host{LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, LocalInterfaces: []string{"cni0", "veth*"}}
	tests := []struct {
		sender policy.Sender
		want   string
	}{
		{policy.Sender{Addr: netip.MustParseAddr("10.1.2.3"), Interface: "eth0"}, "local_cidrs 10.0.0.0/8"},
		{policy.Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}, ""},
		{policy.Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni0"}, "local_interfaces cni0"},
		{policy.Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni01"}, ""},
		{policy.Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "veth7"}, "local_interfaces veth*"},
		{policy.Sender{Addr: netip.MustParseAddr("192.0.2.1"), Host: true}, ""},
	}
	outside, local := policy.Route{Action: policy.Drop}, policy.Route{Action: policy.Balance}
	f := &policy.Frontend{Outside: outside, FromLocal: local, Restricted: true, SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, tt := range tests {
		if got := h.LocalBy(tt.sender); got != tt.want {
			t.Errorf("%+v is local by %q, want %q", tt.sender, got, tt.want)
		}
		want := outside
		if tt.want != "" || tt.sender.Host {
			want = local
		}
		if got := f.RouteOf(tt.sender, h); got != want {
			t.Errorf("%+v meets %+v", tt.sender, got)
		}
		for m, covers := range map[policy.Masquerade]bool{policy.NoOne: false, policy.Everyone: true, policy.HostProcesses: tt.sender.Host, policy.NonLocal: tt.want == ""} {
			if m.Covers(tt.sender, h) != covers {
				t.Errorf("%s covers %+v: %v", m, tt.sender, !covers)
			}
		}
		if f.Admits(tt.sender.Addr) != (tt.sender.Addr == netip.MustParseAddr("10.1.2.3")) {
			t.Errorf("%+v is admitted, or not", tt.sender)
		}
	}
}
