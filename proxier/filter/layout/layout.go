package layout

import (
	"net/netip"
	"strings"

	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// A layout holds the differences between the modes that use these rules.
type layout struct {
	tables []string
	chains []hostChain // that depend on the host only
	jumps  []Jump      // in their order in the built-in chains
	sets   []setType   // in addition to SharedSets

	// hasRules reports whether the trees have rules for a frontend.
	hasRules func(*policy.Frontend) bool

	// usesPool reports whether rules choose among the targets of a service's pool.
	usesPool func(*policy.Resolved, *policy.Pool) bool

	// memberOf returns the sets that a frontend is a member of.
	memberOf func(*policy.Frontend) []string

	// refused are the addresses on which packets to no frontend are refused.
	refused addrSet

	// routeOutside ends the chain of a split frontend, for sources that are not local.
	routeOutside func(*chain, policy.Route)

	// passServed exempts new connections from the refusals that will be balanced, or just were.
	passServed func(*frame, *chain)

	// balanced matches packets that may be hairpins; empty: all may.
	balanced string

	// needs are features that the rules of other modes do not need.
	needs []xtables.Feature

	byIPVS bool // IPVS does the balancing
}

// A frame is what chains depend on besides services.
type frame struct {
	words  Dialect
	layout *layout
	host   policy.Host

	ipvsBalances bool // now, or until these rules are written
}

type hostChain struct {
	table, name string
	fill        func(*frame, *chain)
}

// An addrSet is a set of addresses that the State counts.
type addrSet struct {
	name  string
	addrs func(*policy.State) map[netip.Addr]int
	delta func(*policy.Delta) policy.SetDelta[netip.Addr]
}

// A Jump is a rule of a built-in chain that jumps to one of ours.
type Jump struct{ Table, Chain, Rule string }

// feature returns a feature that a rule of these words needs.
func feature(table, name, words string) xtables.Feature {
	return xtables.Feature{Name: name, Table: table, Words: strings.Fields(words)}
}
