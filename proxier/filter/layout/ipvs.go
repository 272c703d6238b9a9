package layout

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
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

// ipvs is the layout of ipvs mode. IPVS handles packets to addresses of this host:
// from outside after the filter table's INPUT (priority 98 against 0), those of
// host processes between the nat table's OUTPUT (-100) and the filter table's
// (-99 against 0), <linux/netfilter_ipv4.h> and ip_vs_core.c.
//
// So source ranges drop packets already in the mangle table: those of host processes, and those from
// outside too, which rules of others that come first in INPUT may accept. A frontend that drops does so
// there for host processes: IPVS refuses what meets a server whose destinations all have weight 0.
// Only local sources of split frontends, which reach other endpoints than everyone else, are balanced
// by rules of the nat table, before IPVS.
var ipvs = layout{
	tables: []string{"nat", "filter", "mangle"},
	chains: slices.Concat(
		filterChains, // first: what rules of iptables mode give up to IPVS must not be refused
		[]hostChain{{"mangle", firewallChain, (*Rules).beforeIPVS}, {"nat", masqueradeChain, (*Rules).markServed}},
		natChains),
	jumps: append([]Jump{
		{"mangle", "INPUT", newToIPVS + " -j " + firewallChain},
		{"mangle", "OUTPUT", newToIPVS + " -j " + firewallChain},
		{"nat", "PREROUTING", "-j " + masqueradeChain},
		{"nat", "OUTPUT", "-j " + masqueradeChain},
	}, sharedJumps...),
	sets: []setType{
		{servedSet, ipset.HashIPPort},
		{boundSet, ipset.HashIP},
		{everyoneSet, ipset.HashIPPort},
		{nonLocalSet, ipset.HashIPPort},
		{processesSet, ipset.HashIPPort},
		{silentSet, ipset.HashIPPort},
	},
	hasRules: dnatsLocal,
	usesPool: func(res *policy.Resolved, p *policy.Pool) bool {
		return slices.ContainsFunc(res.Frontends, func(f *policy.Frontend) bool {
			return dnatsLocal(f) && f.Local.Pool == p
		})
	},
	memberOf: servedSets,
	refused: addrSet{
		boundSet,
		func(st *policy.State) map[netip.Addr]int { return st.BoundAddrs },
		func(d *policy.Delta) policy.SetDelta[netip.Addr] { return d.BoundAddrs },
	},
	routeOutside: func(_ *Rules, c *chain, _ policy.Route) { c.rule("-j RETURN") },
	passServed:   (*Rules).passServed,
	needs: []xtables.Feature{
		feature("filter", "ipvs", matchIPVS+" -j RETURN"),
		feature("mangle", "DROP", "-j DROP"),
	},
	ipvs: true,
}

// newToIPVS matches packets that IPVS may take for new connections: it asks connection tracking for
// none that a rule of others left out of it.
const newToIPVS = newOnly + ",UNTRACKED"

// dnatsLocal reports whether rules balance packets of local sources.
func dnatsLocal(f *policy.Frontend) bool {
	return f.Split() && f.Local.Action == policy.Balance
}

// servedSets returns the sets of a frontend in ipvs mode.
func servedSets(f *policy.Frontend) []string {
	sets := refusalSets(f)
	if f.Outside.Action != policy.Balance {
		if f.Local.Action == policy.Drop {
			sets = append(sets, silentSet)
		}
		return sets
	}
	sets = append(sets, servedSet)
	if f.Split() || f.Outside.Pool.Forward.Answers() {
		return sets // its chain marks, or nobody is to be masqueraded
	}
	switch f.Outside.Masquerade {
	case policy.Everyone:
		sets = append(sets, everyoneSet)
	case policy.NonLocal:
		sets = append(sets, nonLocalSet)
	case policy.HostProcesses:
		sets = append(sets, processesSet)
	}
	return sets
}

// answered reports whether IPVS sends the packets to f as they are, to endpoints that answer their
// source.
func (r *Rules) answered(f *policy.Frontend) bool {
	return r.layout.ipvs && f.Outside.Pool.Forward.Answers()
}

// beforeIPVS drops what IPVS would balance or refuse.
func (r *Rules) beforeIPVS(c *chain) {
	r.firewall(c)
	c.rule(r.words.match(silentSet, "dst,dst"), hostProcess, "-j DROP")
}

// markServed marks what IPVS will balance and the nat table must masquerade. A
// host process that did not bind an address gets the VIP it connects to as its source, as
// that is an address of this host; no endpoint could reply to that.
func (r *Rules) markServed(c *chain) {
	w := r.words
	c.rule(w.match(everyoneSet, "dst,dst"), "-j", MarkMasq)
	c.rule(w.match(nonLocalSet, "dst,dst"), "-j", MarkNonLocal)
	c.rule(w.match(processesSet, "dst,dst"), hostProcess, "-j", MarkMasq)
	c.rule(w.match(servedSet, "dst,dst"), w.match(boundSet, "src"), "-j", MarkMasq)
}

// passServed exempts from the refusals what IPVS will balance, and what it has.
func (r *Rules) passServed(c *chain) {
	r.passBalanced(c)
	c.rule(r.words.match(servedSet, "dst,dst"), "-j RETURN")
	c.rule(midstream, "-m addrtype --dst-type LOCAL -j RETURN")
}

// midstream matches segments in the middle of a TCP connection. Where endpoints answer clients
// themselves, connection tracking sees one direction only, and takes them for new connections. What
// IPVS does not know of them, the host itself resets, which has the address.
const midstream = "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN"

// passBalanced exempts what IPVS has balanced from the refusals: a packet passes the
// filter table's OUTPUT on its way to its endpoint, like one of this host. Its
// connection gets our mark, by which FORWARD recognises the replies. While another
// mode takes over, a connection may not be marked yet, and only its first packet
// comes here.
func (r *Rules) passBalanced(c *chain) {
	if !r.ipvsBalances {
		return
	}
	c.rule(matchIPVS, "-j CONNMARK --set-xmark", r.bit())
	c.rule(matchIPVS, "-j RETURN")
}

// matchIPVS matches packets that IPVS balances.
const matchIPVS = "-m ipvs --ipvs"

// TakeServed removes from ch, and returns, the changes that must wait until IPVS holds
// the servers: which frontends it serves.
func (r *Rules) TakeServed(ch *Changes) *Changes {
	name := r.words.Set(servedSet)
	served := &Changes{Gained: map[string][]ipset.Entry{name: ch.Gained[name]}, Lost: map[string][]ipset.Entry{}}
	delete(ch.Gained, name)
	ch.Lost[name] = slices.DeleteFunc(ch.Lost[name], func(e ipset.Entry) bool { return r.withheld[e] }) // never there
	return served
}

// Withhold sets, after Reset, or after Update with what TakeServed returned, which of
// all frontends have no server. They do not count as served: packets to addresses on
// our device are refused then, or daemons of the host would answer. It adds to changes
// those that gained or lost their server.
func (r *Rules) Withhold(entries map[ipset.Entry]bool, changes *Changes) {
	was := r.withheld
	r.withheld = entries
	if changes == nil {
		return
	}
	name := r.words.Set(servedSet)
	served := func(e ipset.Entry) bool { return r.members[member{servedSet, e}] > 0 }
	for e := range was {
		if !entries[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Gained[name] = append(changes.Gained[name], e)
		}
	}
	for e := range entries {
		if !was[e] && served(e) && !slices.Contains(changes.Gained[name], e) {
			changes.Lost[name] = append(changes.Lost[name], e)
		}
	}
	changes.Gained[name] = slices.DeleteFunc(changes.Gained[name], func(e ipset.Entry) bool { return entries[e] })
}

// Unguarded returns the frontends that the rules in the kernel, h, do not guard whole: some packets pass that the
// frontend drops, or are left alone that it masquerades. Rules of iptables mode, which come before IPVS, masquerade all.
func (r *Rules) Unguarded(h *Actual) map[ipset.Entry]bool {
	asked := map[string]bool{FirewalledSet: h.leadsTo("INPUT", "")} // the sets that matter: does a packet meet them?
	if !h.Balances() {
		meets := h.leadsTo("PREROUTING", masqueradeChain) && h.leadsTo("OUTPUT", masqueradeChain)
		asked[everyoneSet], asked[nonLocalSet], asked[processesSet] = meets, meets, meets
	}
	held := map[member]bool{}
	for name, asked := range asked {
		if set := h.Sets[r.words.Set(name)]; set != nil && asked {
			for _, e := range set.Entries {
				held[member{name, e}] = true
			}
		}
	}
	out := map[ipset.Entry]bool{}
	for m, n := range r.members {
		if _, matters := asked[m.set]; matters && n > 0 && !held[m] {
			out[m.Entry] = true
		}
	}
	return out
}

// guardSets say who may use frontends, and whom to masquerade there.
var guardSets = []string{FirewalledSet, rangesSet, everyoneSet, nonLocalSet, processesSet}

// TakeGuards removes from ch, and returns, what these sets must not lose before IPVS has stopped balancing to
// endpoints that leave: leaving has their frontends. One that stays restricted loses ranges at once.
func (r *Rules) TakeGuards(ch *Changes, leaving map[ipset.Entry]bool) *Changes {
	opened := map[ipset.Entry]bool{}
	for _, e := range ch.Lost[r.words.Set(FirewalledSet)] {
		opened[e] = leaving[e]
	}
	late := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, set := range guardSets {
		waits := leaving
		if set == rangesSet {
			waits = opened
		}
		moveLost(r.words.Set(set), ch, late, waits)
	}
	return late
}

// moveLost moves what a set loses of some frontends to other changes.
func moveLost(set string, from, to *Changes, of map[ipset.Entry]bool) {
	var stay []ipset.Entry
	for _, e := range from.Lost[set] {
		if of[ipset.Entry{Addr: e.Addr, Protocol: e.Protocol, Port: e.Port}] {
			to.Lost[set] = append(to.Lost[set], e)
		} else {
			stay = append(stay, e)
		}
	}
	if from.Lost[set] = stay; stay == nil {
		delete(from.Lost, set)
	}
}

// Guards returns the same after Reset, if the kernel holds h.
func (r *Rules) Guards(h *Actual, leaving map[ipset.Entry]bool) *Changes {
	ch := &Changes{Lost: map[string][]ipset.Entry{}}
	for _, s := range slices.Concat(SharedSets, r.layout.sets) {
		name := r.words.Set(s.name)
		l := h.Sets[name]
		if !slices.Contains(guardSets, s.name) || l == nil || l.Type != s.Type {
			continue
		}
		for _, e := range l.Entries {
			if _, stays := r.members[member{s.name, e}]; !stays {
				ch.Lost[name] = append(ch.Lost[name], e)
			}
		}
	}
	return r.TakeGuards(ch, leaving)
}

func (r *Rules) withholds(m member) bool { return m.set == servedSet && r.withheld[m.Entry] }
