package layout

import "svcproxy.dev/svcproxy/proxier/policy"

// Desired is the wanted contents of the chains and sets of one family.
type Desired interface {
	Tables() []string // that must exist
	Chains(Emit)
	Jumps() []Jump
	Sets(*policy.State) map[string]Members
}
