package layout

import (
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/netutil/ipset"
	"svcproxy.dev/svcproxy/netutil/xtables"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Desired is the wanted contents of the chains and sets of one family.
type Desired interface {
	Tables() []string // that must exist
	Chains(Emit)
	Jumps() []Jump
	Sets(*policy.State) map[string]Members
}

// Actual is what the kernel holds of ours.
type Actual struct {
	Tables map[string]*xtables.Table
	Sets   map[string]*ipset.Listing
}

// Balances reports whether rules of iptables mode balance.
func (h *Actual) Balances() bool {
	for name := range h.Sets {
		if strings.HasPrefix(name, vipsSet+"-") {
			return true
		}
	}
	return false
}

// leadsTo reports whether packets in a built-in chain of any table pass a chain of ours whose name ends so.
func (h *Actual) leadsTo(hook, chain string) bool {
	for _, tab := range h.Tables {
		if slices.ContainsFunc(tab.Jumps[hook], func(rule string) bool { return strings.HasSuffix(rule, chain) }) {
			return true
		}
	}
	return false
}
