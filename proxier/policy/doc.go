// Package policy decides what becomes of packets: which endpoints are usable, what an empty service answers, whom to
// masquerade, what counts as local, who may use a frontend. All of it is pure, and is decided once, for all backends.
//
// Resolve makes a Resolved of a Subject, a service with what is known of its endpoints beside files, on a Node, which is
// this host. It has frontends, each with a Route for everyone and one for host processes and local sources, to a Pool. A
// State is all of them, what the kernel is to hold for one family; a Delta says how it differs from another one. Of an
// endpoint all that is asked follows from its EndpointState.
//
// An endpoint can be used if it is in the first group that has any (usable.go). Those are usable that are in the tiers in use,
// too, and near enough under traffic_distribution. A policy local takes those of the tiers in use that are here, near or not.
//
// Where a question is decided:
//
//	which endpoints get new connections       choose (endpoints.go): the first group that has any (groupOf): ready ones that
//	                                          pass, ready ones without a result, then the same of those that terminate. Of
//	                                          the first two the tiers in use (lastTier), and of each the nearest
//	                                          (preferredByDistribution). Policy local leaves out the last step.
//	how much each of them gets                targetsOf and Subject.weight (endpoints.go), in weightScale of its weight
//	what is announced, and reported to        readyHere (endpoints.go), of what choose picked
//	health_check_node_port
//	what explain says of an endpoint          States (endpoints.go), the same; status shows TiersInUse, which decides nothing
//	what becomes of connections of those      closes (endpoints.go), and closing.go
//	that left
//	what a frontend does with a packet, and   vipRoutes and externalRoutes (resolve.go)
//	whom it masquerades
//	who may use a frontend                    restrict (sourceranges.go)
//
// The files:
//
//	node                     this host
//	endpointstate            what an endpoint does, in one enumeration
//	conditions               what is known of endpoints beside files: checks, drains, slow starts; their state by that
//	usable, allfailed        which endpoints are used: groups, then tiers, then traffic_distribution (zone, node, hints);
//	                         what is used when no endpoint passes
//	endpoints, resolve       which endpoints a pool has; pools, frontends and routes
//	sourceranges             who may use a frontend
//	frontend, state, delta   a Resolved, all of a family, and how that changes
//	announce, withheld       which addresses the network may be told of, and why not
//	closing                  what a change of a frontend means for its connections
//	reason                   why a route rejects or drops
//	packet                   where a frontend is reached, and what becomes of one packet, for explain
package policy
