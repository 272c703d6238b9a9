package hostsetup

import (
	"math"
	"slices"
	"strconv"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
)

// A setting is a kernel setting and the value it should have.
type setting modes.Sysctl

const (
	forward4      = "net/ipv4/ip_forward"
	forward6      = "net/ipv6/conf/all/forwarding"
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	beLiberal     = "net/netfilter/nf_conntrack_tcp_be_liberal"
)

// sysctls returns what s asks for in modes, in the order to set it in.
func sysctls(s configs.Settings, in []modes.Mode) []setting {
	var list []setting
	if slices.Contains(s.Families, "ipv4") {
		if s.Init.Forwarding {
			list = append(list, setting{forward4, "1"})
		}
		if s.LocalhostNodePorts && slices.ContainsFunc(in, func(m modes.Mode) bool { return m.LocalhostNodePorts }) {
			list = append(list, setting{routeLocalnet, "1"})
		}
	}
	if slices.Contains(s.Families, "ipv6") && s.Init.Forwarding {
		list = append(list, setting{forward6, "1"})
	}
	list = append(list, conntrackSysctls(s.Conntrack)...)
	for _, m := range in {
		needs := m.NeedsUnder(s)
		for _, set := range slices.Concat(needs.Sysctls, needs.Quirks) {
			list = append(list, setting(set))
		}
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
	if c.TCPLoose {
		list = append(list, setting{modes.TCPLoose, "1"})
	}
	if c.Accounting {
		list = append(list, setting{prefix + "acct", "1"})
	}
	return list
}

// seconds returns d in the kernel's unit, rounded up: 0 would mean at once.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
