package node

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/source"
)

func TestInCluster(t *testing.T) {
	pods, other := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("10.0.0.0/8")
	own, foreign := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	member := &source.ClusterNode{Zone: "z", PodCIDRs: []netip.Prefix{pods}, Addrs: []netip.Addr{own, foreign}}
	primary := []string{"primary", "198.51.100.0/24"}
	tests := []struct {
		name     string
		settings configs.Settings
		node     *source.ClusterNode
		want     configs.Settings
	}{
		{"nothing said", configs.Settings{NodePortAddresses: primary}, nil, configs.Settings{NodePortAddresses: primary}},
		{"left open", configs.Settings{NodePortAddresses: primary}, member,
			configs.Settings{Zone: "z", LocalCIDRs: []netip.Prefix{pods}, NodePortAddresses: primary}},
		{"settings win", configs.Settings{Zone: "a", LocalCIDRs: []netip.Prefix{other}, NodePortAddresses: []string{"all"}}, member,
			configs.Settings{Zone: "a", LocalCIDRs: []netip.Prefix{other}, NodePortAddresses: []string{"all"}}},
		{"local interfaces", configs.Settings{LocalInterfaces: []string{"cni0"}}, member, configs.Settings{Zone: "z", LocalInterfaces: []string{"cni0"}}},
		{"addresses of another host", configs.Settings{NodePortAddresses: primary}, &source.ClusterNode{Addrs: []netip.Addr{foreign}},
			configs.Settings{NodePortAddresses: primary}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := InCluster(tt.settings, tt.node, nil)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestServiceCIDRsOfCluster(t *testing.T) {
	cluster, own := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}
	if got := InCluster(configs.Settings{}, nil, cluster).ServiceCIDRs; !cmp.Equal(got, cluster, cmpopts.EquateComparable(netip.Prefix{})) {
		t.Errorf("got %v, want the cluster's", got)
	}
	if got := InCluster(configs.Settings{ServiceCIDRs: own}, nil, cluster).ServiceCIDRs; !cmp.Equal(got, own, cmpopts.EquateComparable(netip.Prefix{})) {
		t.Errorf("got %v, want those of the settings", got)
	}
}

// Of the addresses that a cluster says, those are primary that this host has; without any, its own choice stays.
func TestPrimaryOfCluster(t *testing.T) {
	own, other, foreign := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.9")
	addrs := []links.Addr{{Addr: own, Up: true}, {Addr: other, Up: true, Primary: true}}
	for _, tt := range []struct {
		says *source.ClusterNode
		want netip.Addr
	}{
		{nil, other},
		{&source.ClusterNode{Addrs: []netip.Addr{own, foreign}}, own},
		{&source.ClusterNode{Addrs: []netip.Addr{foreign}}, other},
	} {
		n := Build(configs.Settings{NodePortAddresses: []string{"primary"}}, Primary(addrs, tt.says))
		if len(n.NodePortAddrs) != 1 || n.NodePortAddrs[0] != tt.want || !slices.Equal(n.NodePortAddrs, n.PrimaryAddrs) {
			t.Errorf("the cluster says %v: node ports on %v, primary %v, want %s", tt.says, n.NodePortAddrs, n.PrimaryAddrs, tt.want)
		}
	}
}
