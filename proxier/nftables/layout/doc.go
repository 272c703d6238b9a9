// Package layout says what the nftables table of a family holds: it renders a State as a
// Content, and a Mirror tells which elements and chains a Delta changes. It is pure.
//
// The number of chains depends on which features are in use, and on the distinct numbers
// of slots; services are elements of a Set:
//
//	prerouting, output: what is addressed to a frontend, node ports among them
//	  └─► services      whom to masquerade, how many slots
//	        ├─► admit       source ranges
//	        ├─► pick-N    one of N slots at random, and dnat to its endpoint
//	        ├─► pick-maglev-ip-port-N   the slot that a hash of the client says
//	        └─► sticky    session affinity: for how long is a client remembered?
//	              └─► keep-T ─► renew-T ─► draw ─► draw-N   a known client's endpoint, or a new one,
//	                    that is remembered; forget-N where there are too many (affinity.go)
//	postrouting:        masquerade what is marked, and what reaches itself
//	filter-*:           refuse or drop new connections that were not balanced; filter-forward
//	                    also has the flow rule: established connections go into the flowtable
//	answers:            hold back what endpoints send in connections of other hosts
//	                    (scheduler maglev only)
//
// Words, besides those of proxier:
//
//   - slot: one of the numbers of which a random one picks the target. A target has
//     as many as its weight asks for. Size: how many slots a pool has, rounded up where
//     a random number that falls on none is drawn again.
//   - class: how a packet's frontend is looked up: by address or by node port, and of
//     both for local sources apart.
//   - ticket: a random number that an endpoint of a pool with affinity gets when it is
//     first drawn. Its clients keep the ticket, and it loses that when it leaves.
//   - dynamic set: one to which packets add elements; stale: an element of one that is to go.
//   - record: an element of one of our sets as bytes, key and data (records.go).
//   - checksum: of all elements of a set, in any order; a look compares by it.
//   - split frontend: one that treats host processes and local sources differently. It is
//     in the sets of its class, and in those of the class for local sources.
//   - placed frontend: a node port whose service says which addresses serve it. It is looked
//     up by address too, and goes on in the chains of the other node ports.
//   - deferred rules: those that refuse, added only after all elements.
//
// The files:
//
//	render        a whole State, as a Content: Sets of Records, and chains
//	elements      what elements a service has; a slot becomes one here
//	sets, records which sets there are; their elements as bytes
//	pools, slots, slotorder  the PoolIDs, and which target has how many slots, and which
//	hash          the same for scheduler maglev
//	edits         the Edits of a set: what differs between records and what there is
//	mirror        the Mirror, and the TableUpdate that a Delta makes; chunks: parts of a Delta
//	layout, chains, rules, answers, affinity  the chains, which a chainRenderer writes
//	dialect       what differs between IPv4 and IPv6
//	text          elements and chains as people read them
package layout
