// Package proxier holds one node's kernel to the services it was given.
//
//	source ──► loop.Loop ──────────────► family ─────────────► Backend.Sync ──► kernel
//	           claims.Tracker:           policy.Resolve:       one language each
//	           who owns what             every decision
//	                                     about packets
//
// A change of a service goes this way: the source calls Loop.Apply, through the sink of package daemon, which counts what
// services need of the host. It comes into the inbox. The Loop has the
// claims.Tracker grant it (grantClaims) and sends an order to the goroutine of each address family (sendOrder). The
// family resolves the service (policy.Resolve), records how its State changes (desired.stage) and calls Backend.Sync,
// which writes the difference.
//
// A change by another program goes the other way. Watcher.Watch reports it to package modeswitch (foreign.go), which has a
// Contention for each family and kind: it paces the repairs and calls Loop.Repair or, where events of the kernel were lost,
// Loop.Look. A Look that finds a difference marks its family (family.handleLook). Both lead to a repair by Backend.Sync.
//
// Status is a function of a Snapshot, which family.snapshot makes of what was last synced. A foreign change alone does not
// alter it: an address is pending only after a Sync failed, and one that others change again and again is a warning.
//
// What is known of endpoints beside their files, results of checks, drains and slow starts, comes from package
// conditions: it calls Loop.Reconsider, and the Loop has each service resolved again with it.
//
// Package loop calls backends, and this package has what the two agree on: Backend, what it may be besides, as Watcher or
// Retirer, and PartialError.
//
// The words used here and in the backends:
//
//   - service, service port, endpoint: as in the files. A target is an endpoint
//     that gets new connections, at the port of one service port.
//   - frontend: an address, protocol and port that packets are sent to: a VIP, an
//     external or load-balancer address, or a node port.
//   - route: what a frontend does with a packet: balance, reject or drop. It has
//     one for everyone (Outside) and one for host processes and local sources (FromLocal).
//   - pool: the targets that frontends of one service port share.
//   - local source: the host itself, or an address or interface that the settings name as local.
//   - hairpin: a packet whose target is its own source; it is masqueraded.
//   - claim: what only one service can own: a name, an address with a port, a node port.
//   - unit: what a source hands on at once, a file or an object; accepted or refused.
//   - family: IPv4 or IPv6. Each has a backend and a goroutine of its own, which takes
//     orders from the Loop.
//   - batch: what came in one step and is not yet in the kernel.
//   - doubt: valid configuration that conflicts with something else on this host.
//   - sync: making the kernel hold a State: a delta is written as it is; a full sync renders all of the State,
//     compares it with the kernel, and writes what differs.
//   - repair: a Sync with a delta, empty or not, after Watch or a look reported something; how much of the kernel it
//     reads is the backend's choice.
//   - look: a comparison beside the syncs. The next sync repairs what differs. The setting
//     resync_interval says how often a look comes; the name is kept for users.
//   - foreign: made or changed by another program. Contention: it goes on doing so.
//   - mirror: what a backend knows the kernel to hold.
package proxier
