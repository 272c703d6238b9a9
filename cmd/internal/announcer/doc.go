// Package announcer tells the network of the addresses that loop.Loop hands to it: routers by a
// Speaker of BGP, neighbours by ARP and neighbour discovery.
//
// Nothing is told before the first complete sync: a router that kept routes over a restart takes
// the first set for all there is. A route that is withdrawn because people want it, while the
// kernel goes on serving, is first marked for graceful shutdown (RFC 8326).
//
//	announcer   the goroutine: what is told when, and waiting until it is
//	routes      what is to be told
//	holdback    why the first routes wait
//	speaker     the Speaker, which settings replace or give other routers
//	password    passwords of routers, and those that cannot be read now
//	session     what is known of sessions
package announcer
