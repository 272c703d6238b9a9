// Package loop keeps backends in step with sources.
//
// A Loop takes changes in, as its tracker grants them, and sends orders to its families. A family, of IPv4 or IPv6,
// has a State, a backend and a goroutine of its own: it resolves what an order names, and syncs, at the pace
// that Config allows. Neither waits for the other, nor for what a Sync takes. Once all families hold a change, it
// is logged, and health check node ports tell of it. SyncResult is the outcome of one Sync.
//
// The files, in the order in which a change travels:
//
//	config                   what a Loop needs, and who hears what it does
//	mailbox, inbox, loop     what the Loop is told; its goroutine
//	catalog                  the services in use, and what is known of them
//	nodechange               which services a change of this host touches
//	families                 those that run
//	orders, family           what the Loop sends to a family; its goroutine
//	pace                     when and why a family syncs, and compares beside syncs
//	desired                  what the kernel is to hold of a family, and what of it has changed
//	growth                   large services, which change piece by piece
//	progress, news           whether a Sync makes progress; what others may read of a family
//	backlog                  what not all families hold yet, and its lines in the log
//	nodehealth               what health check node ports answer
//	snapshot                 what others ask of the Loop: package report says what it means
package loop
