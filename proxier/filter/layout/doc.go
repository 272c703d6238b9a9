// Package layout renders a State as iptables chains and ip sets: as Rules, which are text, and
// the Members of sets. iptables mode and ipvs mode share it. It is pure.
//
// Chains of frontends form a tree, so that a packet traverses tens of rules; a pool
// is one chain, an endpoint none. Refused addresses and ports are members of sets that
// constant rules look up. What rules a host cannot have, it refuses: see Unsupported.
//
//	update.go, guards.go             Changes by a delta, and those of them that wait
//	features.go, unsupported.go      what rules need, and the host lacks
//	rules.go, ipvs.go, layout.go     the Rules of a State, and where the modes differ
//	tree.go, frontend.go, pool.go, host.go, names.go  chains
//	overlap.go, sets.go              members of sets
//	actual.go                        what the kernel holds, and what is desired
package layout
