package layout

import (
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// IPVS handles packets to addresses of this host: from outside after the filter table's
// INPUT (priority 98 against 0), those of host processes between the nat table's OUTPUT
// (-100) and the filter table's (-99 against 0), <linux/netfilter_ipv4.h> and ip_vs_core.c.
//
// So source ranges drop packets already in the mangle table: those of host processes, and those from
// outside too, which rules of others that come first in INPUT may accept. A frontend that drops does so
// there for host processes: IPVS refuses what meets a server whose destinations all have weight 0.
// Only local sources of split frontends, which reach other endpoints than everyone else, are balanced
// by rules of the nat table, before IPVS.
var ipvsJumps = append([]Jump{
	{"mangle", "INPUT", newToIPVS + " -j " + firewallChain},
	{"mangle", "OUTPUT", newToIPVS + " -j " + firewallChain},
	{"nat", "PREROUTING", "-j " + masqueradeChain},
	{"nat", "OUTPUT", "-j " + masqueradeChain},
}, sharedJumps...)

var ipvsSets = []ipset.Set{
	{Name: servedSet, Type: ipset.HashIPPort},
	{Name: boundSet, Type: ipset.HashIP},
	{Name: everyoneSet, Type: ipset.HashIPPort},
	{Name: nonLocalSet, Type: ipset.HashIPPort},
	{Name: processesSet, Type: ipset.HashIPPort},
	{Name: silentSet, Type: ipset.HashIPPort},
}

var ipvsFeatures = []xtables.Feature{
	feature("filter", "ipvs", matchIPVS+" -j RETURN"),
	feature("mangle", "DROP", "-j DROP"),
}

// newToIPVS matches packets that IPVS may take for new connections: it asks connection tracking for
// none that a rule of others left out of it.
const newToIPVS = newOnly + ",UNTRACKED"

// ipvsSetsOf returns the sets of a frontend in ipvs mode, beside those that refuse.
func ipvsSetsOf(f *policy.Frontend) []string {
	switch {
	case f.Outside.Action == policy.Balance:
	case f.FromLocal.Action == policy.Drop:
		return []string{silentSet}
	default:
		return nil
	}
	if f.Split() || f.Outside.Pool.Forward.Answers() {
		return []string{servedSet} // its chain marks, or nobody is to be masqueraded
	}
	switch f.Outside.Masquerade {
	case policy.Everyone:
		return []string{servedSet, everyoneSet}
	case policy.NonLocal:
		return []string{servedSet, nonLocalSet}
	case policy.HostProcesses:
		return []string{servedSet, processesSet}
	}
	return []string{servedSet}
}
