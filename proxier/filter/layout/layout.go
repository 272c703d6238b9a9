package layout

import (
	"net/netip"
	"slices"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A layout holds the differences between the modes that use these rules.
type layout struct {
	tables []string
	chains []hostChain // that depend on the host only
	jumps  []Jump      // in their order in the built-in chains
	sets   []setType   // in addition to sharedSets

	// hasRules reports whether the trees have rules for a frontend.
	hasRules func(*policy.Frontend) bool

	// usesPool reports whether rules choose among the targets of a service's pool.
	usesPool func(*policy.Resolved, *policy.Pool) bool

	// memberOf returns the sets that a frontend is a member of.
	memberOf func(*policy.Frontend) []string

	// refused are the addresses on which packets to no frontend are refused.
	refused addrSet

	// routeOutside ends the chain of a split frontend, for sources that are not local.
	routeOutside func(*Rules, *chain, policy.Route)

	// passServed exempts new connections from the refusals that will be balanced, or just were.
	passServed func(*Rules, *chain)

	// balanced matches packets that may be hairpins; empty: all may.
	balanced string

	// needs are features that the rules of other modes do not need.
	needs []xtables.Feature

	ipvs bool // IPVS does the balancing
}

type hostChain struct {
	table, name string
	fill        func(*Rules, *chain)
}

// An addrSet is a set of addresses that the State counts.
type addrSet struct {
	name  string
	addrs func(*policy.State) map[netip.Addr]int
	delta func(*policy.Delta) policy.SetDelta[netip.Addr]
}

// sharedJumps are those of all modes. What Filter refuses, Forward must not accept, so it comes after.
var sharedJumps = []Jump{
	{"nat", "PREROUTING", "-j " + Services},
	{"nat", "OUTPUT", "-j " + Services},
	{"nat", "POSTROUTING", "-j " + Postrouting},
	{"filter", "INPUT", newOnly + " -j " + Filter},
	{"filter", "FORWARD", newOnly + " -j " + Filter},
	{"filter", "FORWARD", "-j " + Forward},
	{"filter", "FORWARD", ofNone + " -j " + Strays},
	{"filter", "OUTPUT", newOnly + " -j " + Filter},
}

// The chains of all modes. Tables are written in this order.
var (
	natChains = []hostChain{
		{"nat", MarkMasq, (*Rules).mark},
		{"nat", MarkNonLocal, (*Rules).markNonLocal},
		{"nat", Postrouting, (*Rules).postrouting},
	}
	filterChains = []hostChain{
		{"filter", Filter, (*Rules).refusals},
		{"filter", Forward, (*Rules).forward},
		{"filter", Strays, (*Rules).strays},
	}
)

// iptables is the layout of iptables mode: rules of the nat table balance everything.
// They come first: what they balance is not refused.
var iptables = layout{
	tables:   []string{"nat", "filter"},
	chains:   slices.Concat(natChains, filterChains),
	jumps:    sharedJumps,
	sets:     []setType{{vipsSet, ipset.HashIP}},
	hasRules: (*policy.Frontend).Balances,
	usesPool: func(*policy.Resolved, *policy.Pool) bool { return true },
	memberOf: refusalSets,
	refused: addrSet{
		vipsSet,
		func(st *policy.State) map[netip.Addr]int { return st.RefusedVIPs },
		func(d *policy.Delta) policy.SetDelta[netip.Addr] { return d.RefusedVIPs },
	},
	routeOutside: func(r *Rules, c *chain, l policy.Route) { r.goTo(c, l, "") },
	passServed:   (*Rules).passBalanced,
	balanced:     dnatted,
}

// BuiltIn returns the built-in chains with jumps to ours, in any mode.
func BuiltIn() (chains []string) {
	for _, l := range []*layout{&iptables, &ipvs} {
		for _, j := range l.jumps {
			if !slices.Contains(chains, j.Chain) {
				chains = append(chains, j.Chain)
			}
		}
	}
	return chains
}
