package hostsetup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/modes"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/sysctl"
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
	texts := []string{kernelTree.verifyClients(m), configs.WarnLists(lists, m.Name)}
	return slices.DeleteFunc(texts, func(s string) bool { return s == "" })
}
