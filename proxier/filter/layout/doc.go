// Package layout renders a State as iptables chains and ip sets: as Rules, which are text, and
// the Members of sets. iptables mode and ipvs mode share it. It is pure.
//
// Chains of frontends form a tree, so that a packet traverses tens of rules; a pool
// is one chain, an endpoint none. Refused addresses and ports are members of sets that
// constant rules look up. What rules a host cannot have, it refuses: see Unsupported.
//
//	rules.go, layout.go, ipvs.go     what the modes share, and where they differ
//	tree.go, frontend.go, pool.go, host.go, names.go  chains
//	sets.go, overlap.go              members of sets
//	update.go                        Changes by a delta
//	features.go, unsupported.go      what rules need, and the host lacks
//	actual.go                        what the kernel holds, and what is desired
package layout
