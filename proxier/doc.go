// Package proxier holds one node's kernel to the services it was given.
//
//	source ──► claims.Tracker ──► policy.Resolve ──► Backend.Sync ──► kernel
//	           who owns what      every decision     one language each
//	                              about packets
//
// Package policy decides, once. A Backend only says the resulting State in its own kernel's language.
//
// The words used here and in the backends:
//
//   - service, service port, endpoint: as in the files. A target is an endpoint
//     that gets new connections, at the port of one service port.
//   - frontend: an address, protocol and port that packets are sent to: a VIP, an
//     external or load-balancer address, or a node port.
//   - route: what a frontend does with a packet: balance, reject or drop. It has
//     one for everyone (Outside) and one for host processes and local sources (Local).
//   - pool: the targets that frontends of one service port share.
//   - local source: the host itself, or an address or interface that the settings name as local.
//   - hairpin: a packet whose target is its own source; it is masqueraded.
//   - claim: what only one service can own: a name, an address with a port, a node port.
//   - unit: what a source hands on at once, a file or an object; accepted or refused.
//   - family: IPv4 or IPv6. Each has a backend and a goroutine of its own, which takes
//     orders from the Loop.
//   - batch: what came in one step and is not yet in the kernel.
//   - doubt: what is valid by itself, and cannot be meant beside what else is on this host.
//   - sync: making the kernel hold a State, by a delta or, at a resync (a full sync), by
//     comparing all of it.
//   - look: a comparison beside the syncs. What differs is repaired by the next sync.
//     The setting resync_interval is how often a look comes; Loop.Resync asks for a resync.
//   - foreign: made or changed by another program. Contention: it goes on doing so.
//   - mirror: what a backend knows the kernel to hold.
//
// The files, in the order in which a change travels:
//
//	inbox, loop              what the Loop is told; its goroutine
//	orders, family           what the Loop sends to a family; its goroutine and State
//	pieces                   large services, which a family changes piece by piece
//	nodechange               which services a change of this host touches
//	conditions               who knows of endpoints what files do not say
//	backend, optional        what a backend must do, and may do
//	pace, progress, stall    when a family syncs, and whether a Sync makes progress
//	look, contention         comparisons beside syncs; repairs paced
//	announce, announcing, announced  which addresses the network is told of, when, and who asks
//	unsynced                 families that are yet to announce what an earlier run did
//	settle, describe, edits  when all families hold a change, and its line in the log
//	held                     waiting for that
//	health, doubts*, serving, snapshot, status, summary, runs  what others ask of the Loop
//	states                   the state of each endpoint in a word, for people
//	triggers, repair_cause   what a sync tells of besides: when changes were made, why it repaired
//	counts                   how many services and endpoints are how, for metrics
//	plan*                    what a sync would change, and what that means for connections
//	tally                    what a cleanup removed
package proxier
