package modes

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/ipvs"
	"svcproxy.dev/svcproxy/proxier/policy"
)

func openIPVS(ctx context.Context, fam policy.Family, c OpenConfig) (Backend, error) {
	s := c.IPVS
	return ipvs.New(ctx, fam, ipvs.Options{
		StateDir: c.StateDir, Scheduler: s.Scheduler, DrainTimeout: s.DrainTimeout,
		Leaving: c.Leaving, TCPTimeout: s.TCPTimeout, TCPFinTimeout: s.TCPFinTimeout, UDPTimeout: s.UDPTimeout,
		Log: c.Log,
	})
}

// removeIPVS removes what is in IPVS and on our device. Chains and sets are removed
// with those of iptables mode.
func removeIPVS(ctx context.Context, fam policy.Family, c OpenConfig) error {
	return ipvs.Cleanup(ctx, fam, c.StateDir, c.Log)
}

func compareIPVS(before, after *policy.State, s configs.Settings) ([]proxier.Change, error) {
	return ipvs.Compare(before, after, ipvs.Options{Scheduler: s.IPVS.Scheduler, DrainTimeout: s.IPVS.DrainTimeout})
}

// ipvsBalancing has the settings of the kernel that decide whether IPVS masquerades, and who answers
// ARP for the addresses of svcproxy0.
var ipvsBalancing = Balancing{
	BindsAddresses: true, Balancer: "IPVS", HashTable: "IPVS (mh)",
	PacketSysctls: []string{"net/ipv4/vs/conntrack", "net/ipv4/conf/all/arp_ignore", "net/ipv4/conf/all/arp_announce"},
}

func ipvsDrainTimeout(s configs.Settings) time.Duration { return s.IPVS.DrainTimeout }

// ipvsNeeds has mh too, which any service may name as scheduler maglev.
func ipvsNeeds(s configs.Settings) Needs {
	return Needs{
		Modules: []Module{{Name: "ip_vs"}, {Name: "ip_vs_" + s.IPVS.Scheduler}, {Name: "ip_vs_mh"}, {Name: "dummy"}, {Name: "xt_ipvs"}},
		Sysctls: ipvsSysctls(s.IPVS),
		Quirks:  reuseSysctls(kernelRelease()),
	}
}

// ipvsSysctls returns what masquerading and removing servers needs of IPVS, and
// what keeps this host from answering ARP for the addresses of svcproxy0.
func ipvsSysctls(s configs.IPVS) []Sysctl {
	list := []Sysctl{
		{"net/ipv4/vs/conntrack", "1"},
		{"net/ipv4/vs/expire_nodest_conn", "1"},
		{"net/ipv4/vs/expire_quiescent_template", "1"},
	}
	if s.StrictARP {
		list = append(list,
			Sysctl{"net/ipv4/conf/all/arp_ignore", "1"},
			Sysctl{"net/ipv4/conf/all/arp_announce", "2"})
	}
	if s.SloppyTCP {
		list = append(list, Sysctl{SloppyTCP, "1"})
	}
	return list
}

// reuseSysctls returns what keeps a client's port that comes back from waiting a
// second for the end of its old connection, on the kernels, from 4.1 to before
// 5.9, that drop its first packet. Elsewhere the kernel's default is right.
func reuseSysctls(release string) []Sysctl {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return nil
	}
	if before := func(a, b int) bool { return major < a || major == a && minor < b }; before(4, 1) || !before(5, 9) {
		return nil
	}
	return []Sysctl{{"net/ipv4/vs/conn_reuse_mode", "0"}}
}

// kernelRelease returns what uname -r says, as in "6.1.0-18-amd64".
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
