// Package trace shows new connections to services as the kernel handles them.
//
// One design serves every mode. A table of its own logs the first packet of a
// connection where it enters the host, where it is routed and where it leaves,
// together with what connection tracking knows of it by then: its endpoint, and its new
// source. Refusals are seen as the answers that this host sends. A packet that neither
// leaves nor is answered was dropped. Why that is so, the services say.
//
// The table is owned by the socket of this process (kernel 5.12), so that it goes
// with it however the process ends. On an older kernel Remove finds it by its name.
//
//	filter     what to show
//	names      whose an address is, and what becomes of packets to it
//	rules      the table
//	sighting   what was seen of one connection, and what it means
//	watch      receives, and tells lines
//	line       how a line is written
//	leftovers  tables of processes that were killed
package trace
