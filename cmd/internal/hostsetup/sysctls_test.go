package hostsetup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
)

func TestSysctls(t *testing.T) {
	both := []string{"ipv4", "ipv6"}
	tests := []struct {
		name string
		mode string
		in   configs.Settings
		want []modes.Sysctl
	}{
		{"default", "iptables", configs.Settings{Families: both}, []modes.Sysctl{
			{Name: "net/ipv4/ip_forward", Value: "1"},
			{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
		}},
		{"one family", "iptables", configs.Settings{Families: both[1:], LocalhostNodePorts: true}, []modes.Sysctl{
			{Name: "net/ipv6/conf/all/forwarding", Value: "1"},
		}},
		{"localhost", "iptables", configs.Settings{Families: both[:1], LocalhostNodePorts: true}, []modes.Sysctl{
			{Name: "net/ipv4/ip_forward", Value: "1"},
			{Name: "net/ipv4/conf/all/route_localnet", Value: "1"},
		}},
		{"conntrack", "nftables", configs.Settings{Conntrack: configs.Conntrack{
			Max: 1000000, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
			UDPTimeout: 1500 * time.Millisecond, UDPStreamTimeout: time.Minute, TCPBeLiberal: true, TCPLoose: true,
		}}, []modes.Sysctl{
			{Name: "net/netfilter/nf_conntrack_max", Value: "1000000"},
			{Name: "net/netfilter/nf_conntrack_tcp_timeout_established", Value: "86400"},
			{Name: "net/netfilter/nf_conntrack_tcp_timeout_close_wait", Value: "3600"},
			{Name: "net/netfilter/nf_conntrack_udp_timeout", Value: "2"},
			{Name: "net/netfilter/nf_conntrack_udp_timeout_stream", Value: "60"},
			{Name: "net/netfilter/nf_conntrack_tcp_be_liberal", Value: "1"},
			{Name: "net/netfilter/nf_conntrack_tcp_loose", Value: "1"},
		}},
		{"ipvs", "ipvs", configs.Settings{Families: both[:1], LocalhostNodePorts: true, IPVS: configs.IPVS{StrictARP: true, SloppyTCP: true}}, []modes.Sysctl{
			{Name: "net/ipv4/ip_forward", Value: "1"},
			{Name: "net/ipv4/vs/conntrack", Value: "1"},
			{Name: "net/ipv4/vs/expire_nodest_conn", Value: "1"},
			{Name: "net/ipv4/vs/expire_quiescent_template", Value: "1"},
			{Name: "net/ipv4/conf/all/arp_ignore", Value: "1"},
			{Name: "net/ipv4/conf/all/arp_announce", Value: "2"},
			{Name: "net/ipv4/vs/sloppy_tcp", Value: "1"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Init.Forwarding = true
			got := sysctls(tt.in, modes.OfSetting(tt.mode))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("sysctls (-want +got):\n%s", diff)
			}
		})
	}
}
