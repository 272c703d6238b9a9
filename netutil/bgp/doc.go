// Package bgp announces host routes to routers. It is GoBGP with everything but
// announcing taken away: a [Speaker] holds sessions to its peers, announces the routes that
// [Speaker.SetRoutes] was given last, each with this host as next hop, and learns nothing.
//
// # Life of a speaker
//
//	New --Run--> listens --first SetRoutes--> sessions --SetRoutes--> routes --Stop--> ended
//
// No session is opened before the first SetRoutes, because of graceful restart: a router that
// kept our routes while we were away removes those that are not announced again when
// it receives our End-of-RIB. So the first set has to be complete, and may be empty.
//
// # Graceful restart (RFC 4724)
//
// With [Config.GracefulRestart], OPEN says that we have restarted and that forwarding was
// preserved: the kernel forwards without us. Stop(true) cuts the TCP connections without a
// NOTIFICATION, as a crash does, and routers that agreed keep the routes until we are back, or
// until the time has passed. Routes and End-of-RIB follow as soon as the router has sent its own
// End-of-RIB, or one second after the session is established. A session that is lost and comes back
// without a restart of the process says the same, as its forwarding was preserved too.
//
// # Both families over one session
//
// Each session offers IPv4 and IPv6 unicast (RFC 4760), and carries those that the peer agrees to. Routes of
// the family of the session have the session's own address as next hop. Those of the other family have the
// address of that family on the interface towards the peer: a global one that is not tentative, deprecated or
// temporary, and the lowest, first of all of those with a prefix shorter than a host's.
// Without any, IPv4 routes over an IPv6 session get an IPv6 next hop if the peer
// can use it (RFC 8950); else they are withheld, and [Family.Withheld] says why. Where
// there are peers of both families, a router should be configured to accept each family in one of the two sessions.
//
// # What is refused
//
// Routes that a peer sends reach neither our table nor other peers; [Family.Refused] counts them, with
// our own routes where a router sends them back, as FRR does. GoBGP keeps them in memory all the same, without
// their attributes and [MostReceived] of each peer at most, so
// a router should be configured to send none; [PeerState.Notice] says so where it sends many.
//
// # Files
//
// config.go has the configuration and what is valid, speaker.go the life of a speaker, sessions.go what is known of its peers,
// state.go what others see of it, apply.go the routes and how they reach GoBGP; gobgp.go writes GoBGP's requests, nexthop.go
// finds addresses, and faults.go reads GoBGP's log: it puts into words why a session is not there, and leaves out lines that
// repeat another and what GoBGP would keep of updates. GoBGP keeps options of
// its route selection in variables of its package, so that starting a second speaker while
// another one runs in the same process is a data race; with the same values, and without consequence.
// At the end of a session whose queue is not empty it leaves a goroutine behind.
package bgp
