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
		want []setting
	}{
		{"default", "iptables", configs.Settings{Families: both}, []setting{
			{"net/ipv4/ip_forward", "1"},
			{"net/ipv6/conf/all/forwarding", "1"},
		}},
		{"one family", "iptables", configs.Settings{Families: both[1:], LocalhostNodePorts: true}, []setting{
			{"net/ipv6/conf/all/forwarding", "1"},
		}},
		{"localhost", "iptables", configs.Settings{Families: both[:1], LocalhostNodePorts: true}, []setting{
			{"net/ipv4/ip_forward", "1"},
			{"net/ipv4/conf/all/route_localnet", "1"},
		}},
		{"conntrack", "nftables", configs.Settings{Conntrack: configs.Conntrack{
			Max: 1000000, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour,
			UDPTimeout: 1500 * time.Millisecond, UDPStreamTimeout: time.Minute, TCPBeLiberal: true, TCPLoose: true,
		}}, []setting{
			{"net/netfilter/nf_conntrack_max", "1000000"},
			{"net/netfilter/nf_conntrack_tcp_timeout_established", "86400"},
			{"net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"},
			{"net/netfilter/nf_conntrack_udp_timeout", "2"},
			{"net/netfilter/nf_conntrack_udp_timeout_stream", "60"},
			{"net/netfilter/nf_conntrack_tcp_be_liberal", "1"},
			{"net/netfilter/nf_conntrack_tcp_loose", "1"},
		}},
		{"ipvs", "ipvs", configs.Settings{Families: both[:1], LocalhostNodePorts: true, IPVS: configs.IPVS{StrictARP: true, SloppyTCP: true}}, []setting{
			{"net/ipv4/ip_forward", "1"},
			{"net/ipv4/vs/conntrack", "1"},
			{"net/ipv4/vs/expire_nodest_conn", "1"},
			{"net/ipv4/vs/expire_quiescent_template", "1"},
			{"net/ipv4/conf/all/arp_ignore", "1"},
			{"net/ipv4/conf/all/arp_announce", "2"},
			{"net/ipv4/vs/sloppy_tcp", "1"},
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
