package proxier

import (
	"net/netip"
	"testing"
)

func TestSender(t *testing.T) {
	h := &Host{LocalCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, LocalInterfaces: []string{"cni0", "veth*"}}
	tests := []struct {
		sender Sender
		want   string
	}{
		{Sender{Addr: netip.MustParseAddr("10.1.2.3"), Interface: "eth0"}, "local_cidrs 10.0.0.0/8"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "eth0"}, ""},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni0"}, "local_interfaces cni0"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "cni01"}, ""},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Interface: "veth7"}, "local_interfaces veth*"},
		{Sender{Addr: netip.MustParseAddr("192.0.2.1"), Host: true}, ""},
	}
	outside, local := Route{Action: Drop}, Route{Action: Balance}
	f := &Frontend{Outside: outside, Local: local, Restricted: true, SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
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
		for m, covers := range map[Masquerade]bool{NoOne: false, Everyone: true, HostProcesses: tt.sender.Host, NonLocal: tt.want == ""} {
			if m.Covers(tt.sender, h) != covers {
				t.Errorf("%s covers %+v: %v", m, tt.sender, !covers)
			}
		}
		if f.Admits(tt.sender.Addr) != (tt.sender.Addr == netip.MustParseAddr("10.1.2.3")) {
			t.Errorf("%+v is admitted, or not", tt.sender)
		}
	}
}
