// Package filter keeps the kernel's iptables chains and ip sets in step with a State.
// iptables mode and ipvs mode share it.
//
//	State ──► layout.Rules (pure: text of chains, members of sets) ──► Kernel (compares and writes)
//
//	repair.go, resync.go, write.go  the syncs: of what looks found, of everything, of a change
//	kernel.go, cleanup.go           opening, what the host lacks, and leaving
//	watch.go, look.go               looks beside the syncs
//	mirror.go                       what the kernel holds after the last sync
//	compare.go, order.go            actual against desired; our jumps before foreign rules
//	sets.go                         ip sets
//	read.go, restore.go             tables, also beside other programs that write
//	keep.go                         connections that must survive changes
//	objects.go                      what the kernel has, and lacks, of one frontend, for explain
//	family.go, changes.go           what all share: one family on this host, names of objects
package filter
