// Package announce keeps track of which addresses the network is told of.
//
// An address is announced while a service that asks for it is in the kernel and has endpoints that serve it. What
// begins to be announced is so only after a Sync, and what ends, before one: no packet comes for an address that the
// kernel does not serve. Several services may ask for one address, and while this host is drained there is none.
//
// A family of the Loop has a Ledger of that, and hands the Changes that are news to an Announcer, which speaks to routers
// and neighbours. A Loss says whether people asked for the end of an announcement, or something failed.
package announce
