package node

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/netutil/links"
	"svcproxy.dev/svcproxy/netutil/sockets"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// Listeners returns where processes of this host listen, as far as it tells.
func Listeners() ([]report.Listener, error) {
	list, err := sockets.Listeners()
	out := make([]report.Listener, len(list))
	for i, l := range list {
		out[i] = report.Listener{Protocol: source.Protocol(l.Protocol), AddrPort: l.AddrPort, Both: l.DualStack, Own: l.Own}
	}
	return out, err
}

// Surroundings returns what a daemon with these settings would find on this host,
// which may run: where that listens is left out. It has no services.
func Surroundings(s configs.Settings) (report.Snapshot, error) {
	addrs, err := links.Addrs()
	if err != nil {
		return report.Snapshot{}, err
	}
	list, err := Listeners()
	if err != nil {
		return report.Snapshot{}, err
	}
	reserved := Reserved(s)
	list = slices.DeleteFunc(list, func(l report.Listener) bool {
		return l.Protocol == source.TCP && slices.ContainsFunc(reserved, func(r netip.AddrPort) bool { return r.Port() == l.Port() })
	})
	var around report.Snapshot
	around.Node, around.Families = Build(s, addrs), Families(s)
	around.Listening = func() []report.Listener { return list }
	return around, nil
}

// Families returns those that settings ask for.
func Families(s configs.Settings) []policy.Family {
	var list []policy.Family
	for _, fam := range []policy.Family{policy.IPv4, policy.IPv6} {
		if slices.Contains(s.Families, fam.String()) {
			list = append(list, fam)
		}
	}
	return list
}
