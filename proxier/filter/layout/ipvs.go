package layout

import (
	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// The chains and sets of ipvs mode only.
const (
	masqueradeChain = Prefix + "MASQUERADE" // nat: marks what IPVS will balance and nat must masquerade
	firewallChain   = Prefix + "FIREWALL"   // mangle: drops what IPVS must not see

	servedSet    = Prefix + "SERVED"   // frontends that IPVS balances
	boundSet     = Prefix + "BOUND"    // addresses on our device
	everyoneSet  = Prefix + "MASQ-ALL" // frontends, by the sources to masquerade
	nonLocalSet  = Prefix + "MASQ-NONLOCAL"
	processesSet = Prefix + "MASQ-HOST"
	silentSet    = Prefix + "DROP-HOST" // frontends that drop packets of host processes, too
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

var ipvsSets = []setType{
	{servedSet, ipset.HashIPPort},
	{boundSet, ipset.HashIP},
	{everyoneSet, ipset.HashIPPort},
	{nonLocalSet, ipset.HashIPPort},
	{processesSet, ipset.HashIPPort},
	{silentSet, ipset.HashIPPort},
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

// beforeIPVS drops what IPVS would balance or refuse.
func (fr *frame) beforeIPVS(c *chain) {
	fr.words.firewall(c)
	c.rule(fr.words.match(silentSet, "dst,dst"), hostProcess, "-j DROP")
}

// markServed marks what IPVS will balance and the nat table must masquerade. A
// host process that did not bind an address gets the VIP it connects to as its source, as
// that is an address of this host; no endpoint could reply to that.
func (fr *frame) markServed(c *chain) {
	w := fr.words
	c.rule(w.match(everyoneSet, "dst,dst"), "-j", MarkMasq)
	c.rule(w.match(nonLocalSet, "dst,dst"), "-j", MarkNonLocal)
	c.rule(w.match(processesSet, "dst,dst"), hostProcess, "-j", MarkMasq)
	c.rule(w.match(servedSet, "dst,dst"), w.match(boundSet, "src"), "-j", MarkMasq)
}

// midstream matches segments in the middle of a TCP connection. Where endpoints answer clients
// themselves, connection tracking sees one direction only, and takes them for new connections. What
// IPVS does not know of them, the host itself resets, which has the address.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN"
