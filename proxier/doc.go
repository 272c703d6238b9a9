// Package proxier holds one node's kernel to the services it was given.
//
//	source ──► claims.Tracker ──► policy.Resolve ──► Backend.Sync ──► kernel
//	           who owns what      every decision     one language each
//	                              about packets
//
// Package policy decides, once. A Backend only says the resulting State in its own kernel's language. Package loop
// calls it, and this package has what the two agree on: Backend, what it may be besides, as Watcher or Retirer, and
// PartialError. A Contention paces the repair of what other programs change.
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
package proxier
