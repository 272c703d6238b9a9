// Package filter keeps the kernel's iptables chains and ip sets in step with a State.
// iptables mode and ipvs mode share it.
//
//	State ──► layout.Rules (pure: text of chains, members of sets) ──► Kernel (compares and writes)
//
//	kernel.go, probe.go             opening, and what the host lacks
//	read.go, compare.go             actual against desired; changes.go says it in text
//	write.go, restore.go            writing
//	mirror.go, look.go, watch.go    looks beside the syncs, and repairs
//	order.go                        our jumps before foreign rules
//	keep.go, adopt.go               connections that must survive changes
//	objects.go                      what the kernel has, and lacks, of one frontend, for explain
package filter
