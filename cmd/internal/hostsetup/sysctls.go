package hostsetup

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy/configs"
)

// A setting is a kernel setting by its path below /proc/sys, and the value it should have.
type setting struct{ name, value string }

const (
	forward4      = "net/ipv4/ip_forward"
	forward6      = "net/ipv6/conf/all/forwarding"
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	beLiberal     = "net/netfilter/nf_conntrack_tcp_be_liberal"
)

// sysctls returns what s asks for in a mode, in the order to set it in.
func sysctls(s configs.Settings, mode string) []setting {
	var list []setting
	if slices.Contains(s.Families, "ipv4") {
		if s.Init.Forwarding {
			list = append(list, setting{forward4, "1"})
		}
		if s.LocalhostNodePorts && mayBe(mode, "iptables") {
			list = append(list, setting{routeLocalnet, "1"})
		}
	}
	if slices.Contains(s.Families, "ipv6") && s.Init.Forwarding {
		list = append(list, setting{forward6, "1"})
	}
	list = append(list, conntrackSysctls(s.Conntrack)...)
	if mode == "ipvs" {
		list = append(list, ipvsSysctls(s.IPVS)...)
		list = append(list, reuseSysctls(kernelRelease())...)
	}
	return list
}

// conntrackSysctls leaves out what is to be left alone.
func conntrackSysctls(c configs.Conntrack) []setting {
	const prefix = "net/netfilter/nf_conntrack_"
	var list []setting
	if c.Max > 0 {
		list = append(list, setting{prefix + "max", strconv.Itoa(c.Max)})
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"tcp_timeout_established", c.TCPEstablishedTimeout},
		{"tcp_timeout_close_wait", c.TCPCloseWaitTimeout},
		{"udp_timeout", c.UDPTimeout},
		{"udp_timeout_stream", c.UDPStreamTimeout},
	} {
		if t.d > 0 {
			list = append(list, setting{prefix + t.name, seconds(t.d)})
		}
	}
	if c.TCPBeLiberal {
		list = append(list, setting{beLiberal, "1"})
	}
	return list
}

// ipvsSysctls returns what masquerading and removing servers needs of IPVS, and
// what keeps this host from answering ARP for the addresses of svcproxy0.
func ipvsSysctls(s configs.IPVS) []setting {
	list := []setting{
		{"net/ipv4/vs/conntrack", "1"},
		{"net/ipv4/vs/expire_nodest_conn", "1"},
		{"net/ipv4/vs/expire_quiescent_template", "1"},
	}
	if s.StrictARP {
		list = append(list,
			setting{"net/ipv4/conf/all/arp_ignore", "1"},
			setting{"net/ipv4/conf/all/arp_announce", "2"})
	}
	return list
}

// reuseSysctls returns what keeps a client's port that comes back from waiting a
// second for the end of its old connection, on the kernels, from 4.1 to before
// 5.9, that drop its first packet. Elsewhere the kernel's default is right.
func reuseSysctls(release string) []setting {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return nil
	}
	if before := func(a, b int) bool { return major < a || major == a && minor < b }; before(4, 1) || !before(5, 9) {
		return nil
	}
	return []setting{{"net/ipv4/vs/conn_reuse_mode", "0"}}
}

// kernelRelease returns what uname -r says, as in "6.1.0-18-amd64".
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// seconds returns d in the kernel's unit, rounded up: 0 would mean at once.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
