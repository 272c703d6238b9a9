// Package loop keeps backends in step with sources.
//
// A Loop takes changes in, as its tracker grants them, and sends orders to its families. A family, of IPv4 or IPv6,
// has a State, a backend and a goroutine of its own: it resolves what an order names, and syncs, at the pace
// that Config allows. Neither waits for the other, nor for what a Sync takes. Once all families hold a change, it
// is logged, and health check node ports tell of it. SyncResult is the outcome of one Sync.
//
// The files, in the order in which a change travels:
//
//	inbox, loop              what the Loop is told; its goroutine
//	orders, family           what the Loop sends to a family; its goroutine and State
//	desired                  what the kernel is to hold of a family, and what of it has changed
//	growth, pairs, sharing,  large services, which change piece by piece
//	hairpins, sizes
//	nodechange               which services a change of this host touches
//	conditions               who knows of endpoints what files do not say
//	pace, progress           when and why a family syncs, and whether a Sync makes progress
//	look, questions          comparisons beside syncs, and in their place
//	announcing               when the network is told of addresses
//	news                     what others may read of a family
//	settle                   when all families hold a change, and its line in the log
//	held                     waiting for that
//	nodehealth               what health check node ports answer
//	triggers                 when changes were made that a sync brings to the kernel
//	snapshot, plan           what others ask of the Loop: package report says what it means
package loop
