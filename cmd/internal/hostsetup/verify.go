package hostsetup

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/netutil/sysctl"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/filter"
	"svcproxy.dev/svcproxy/proxier/filter/layout"
)

// Verify names the settings of this host that keep traffic from flowing. What
// cannot be read until ctx ends is not named.
func Verify(ctx context.Context, s configs.Settings, m modes.Mode) []string {
	out := VerifySysctls(s, m)
	for _, name := range forwardDrops(ctx, m.Forward) {
		advice := ""
		if m.Forward == "" && strings.HasSuffix(name, " filter FORWARD") {
			advice = ", or use " + modes.Forwarding().Name + " mode"
		}
		out = append(out, "the policy of "+name+" is drop, which "+m.Name+" mode cannot overrule: accept the forwarded traffic of services there"+advice)
	}
	return out
}

// VerifySysctls names those below /proc/sys. It starts no program.
func VerifySysctls(s configs.Settings, m modes.Mode) []string {
	var out []string
	const runInit = "run svcproxy init, or "
	advised := func(name, text, advice string) {
		if v, err := sysctl.Get(name); err == nil && v == "0" {
			out = append(out, text+"; "+advice+"set "+name+"=1")
		}
	}
	warn := func(name, text string) { advised(name, text, runInit) }
	forwarding := runInit
	if !s.Init.Forwarding {
		forwarding = "svcproxy init leaves it, as [init] forwarding is false: "
	}
	if slices.Contains(s.Families, "ipv4") {
		advised(forward4, "IPv4 forwarding is off: no endpoint on another host answers", forwarding)
	}
	if slices.Contains(s.Families, "ipv6") {
		advised(forward6, "IPv6 forwarding is off: no endpoint on another host answers", forwarding)
	}
	if s.Conntrack.TCPBeLiberal {
		warn(beLiberal, "connection tracking takes TCP segments outside their window for invalid: one of them makes the client or this host reset its connection")
	}
	if s.LocalhostNodePorts && m.LocalhostNodePorts {
		warn(routeLocalnet, "localhost_node_ports is set but route_localnet is off: no node port answers on 127.0.0.1")
	}
	for _, set := range m.NeedsUnder(s).Sysctls {
		if v, err := sysctl.Get(set.Name); err == nil && v != set.Value {
			out = append(out, fmt.Sprintf("%s is %s, and %s mode needs %s; run svcproxy init, or set it", set.Name, v, m.Name, set.Value))
		}
	}
	return out
}

// VerifyTakeover says what keeps this host from taking up connections that another host had:
// it is for services whose every host chooses the same endpoint.
func VerifyTakeover(m modes.Mode) []string {
	var out []string
	for _, set := range m.TakesUp {
		if v, err := sysctl.Get(set.Name); err == nil && v != set.Value {
			out = append(out, fmt.Sprintf("%s is %s: a connection of scheduler maglev that another host had before it died is refused here; "+
				"set %s to true in svcproxy.toml and run svcproxy init, or set it to %s", set.Name, v, takeoverKeys[set.Name], set.Value))
		}
	}
	return out
}

// takeoverKeys are the settings that have init set them.
var takeoverKeys = map[string]string{modes.TCPLoose: "[conntrack] tcp_loose", modes.SloppyTCP: "[ipvs] sloppy_tcp"}

// VerifyAffinity says what is wrong with session affinity for so many endpoints
// and ports: whether this host forgets clients too early, and whether they make
// changes slow. It returns nothing where that is not so, or not known.
func VerifyAffinity(m modes.Mode, lists int) []string {
	if lists == 0 {
		return nil
	}
	texts := []string{verifyClients(kernelTree, m), configs.WarnLists(lists, m.Name)}
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}

const (
	forward4      = "net/ipv4/ip_forward"
	forward6      = "net/ipv6/conf/all/forwarding"
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	beLiberal     = "net/netfilter/nf_conntrack_tcp_be_liberal"
)

// sysctls returns what s asks for in modes, in the order to set it in, without what is to be left alone.
func sysctls(s configs.Settings, in []modes.Mode) (list []modes.Sysctl) {
	const prefix = "net/netfilter/nf_conntrack_"
	c, ipv4, ipv6 := s.Conntrack, slices.Contains(s.Families, "ipv4"), slices.Contains(s.Families, "ipv6")
	setIf := func(asked bool, name, value string) {
		if asked {
			list = append(list, modes.Sysctl{Name: name, Value: value})
		}
	}
	localhost := s.LocalhostNodePorts && slices.ContainsFunc(in, func(m modes.Mode) bool { return m.LocalhostNodePorts })
	setIf(ipv4 && s.Init.Forwarding, forward4, "1")
	setIf(ipv4 && localhost, routeLocalnet, "1")
	setIf(ipv6 && s.Init.Forwarding, forward6, "1")
	setIf(c.Max > 0, prefix+"max", strconv.Itoa(c.Max))
	timeout := func(name string, d time.Duration) { // in the kernel's unit, rounded up: 0 would mean at once
		setIf(d > 0, prefix+name, strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10))
	}
	timeout("tcp_timeout_established", c.TCPEstablishedTimeout)
	timeout("tcp_timeout_close_wait", c.TCPCloseWaitTimeout)
	timeout("udp_timeout", c.UDPTimeout)
	timeout("udp_timeout_stream", c.UDPStreamTimeout)
	setIf(c.TCPBeLiberal, beLiberal, "1")
	setIf(c.TCPLoose, modes.TCPLoose, "1")
	setIf(c.Accounting, prefix+"acct", "1")
	for _, m := range in {
		needs := m.NeedsUnder(s)
		list = slices.Concat(list, needs.Sysctls, needs.Quirks)
	}
	return list
}

// lookTime is how long looking at legacy iptables may take. Usually it takes milliseconds.
var lookTime = 2 * time.Second

// forwardDrops names the chains that drop what is forwarded unless a rule accepts
// it: those of nf_tables, iptables-nft among them, and those of legacy iptables.
// Rules that drop are not looked for: what they match is not ours to judge. What
// cannot be read is not named, nor is a chain in front of which own accepts; empty:
// a mode accepts nowhere.
func forwardDrops(ctx context.Context, own string) []string {
	names, err := nft.ForwardDrops(own)
	if err != nil {
		names = nil
	}
	for _, v6 := range []bool{false, true} {
		if slices.Contains(xtables.LegacyTables(v6), "filter") {
			names = append(names, legacyForward(ctx, v6, own)...)
		}
		if own != "" {
			names = willAccept(ctx, names, v6)
		}
	}
	slices.Sort(names)
	return names
}

// legacyForward names FORWARD of legacy iptables where its policy is DROP and no chain own is there.
func legacyForward(ctx context.Context, v6 bool, own string) []string {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	tools, err := xtables.Installed(ctx, v6)
	if err != nil {
		return nil
	}
	for _, t := range tools {
		if t.Variant != xtables.Legacy {
			continue
		}
		table, err := t.Read(ctx, "filter", layout.Prefix)
		if err != nil || table.Policies["FORWARD"] != "DROP" {
			continue
		}
		if _, accepts := table.Chains[own]; !accepts {
			return []string{forwardOf(t)}
		}
	}
	return nil
}

// forwardOf returns the name of the chain FORWARD of a variant.
func forwardOf(t *xtables.Tool) string {
	if t.Variant == xtables.Legacy {
		return t.String() + " filter FORWARD"
	}
	if t.IPv6 {
		return "ip6 filter FORWARD"
	}
	return "ip filter FORWARD"
}

// willAccept takes the chain out of names in front of which the first sync will accept.
func willAccept(ctx context.Context, names []string, v6 bool) []string {
	ours := func(name string) bool {
		return strings.HasPrefix(name, xtables.Base(v6)+"-") || name == forwardOf(&xtables.Tool{Variant: xtables.NFT, IPv6: v6})
	}
	if !slices.ContainsFunc(names, ours) {
		return names // and no program is started
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	choice, err := filter.Choose(ctx, v6)
	if err != nil {
		return names
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == forwardOf(choice.Use) })
}
