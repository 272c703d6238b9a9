// Package lab is a network in a box to test svcproxy in: namespaces with real
// packets, the program as a user runs it, and helpers that connect and say who
// answered and which source address it saw. It knows nothing of how a mode
// works, so that every mode is held to the same cases. It needs root.
//
//	client ── router ── node ── gateway
//	            │         │
//	         remote1-3  local1-3
//
// svcproxy runs on node. The client and the router route everything they do not
// know to node, and node to gateway, which answers on every address and port:
// so a packet that svcproxy leaves untouched is answered by gateway, a dropped
// one by nobody, and a refused one at once. Every link is routed, none is a
// bridge: on a bridge replies between two local endpoints would bypass the
// reverse translation.
package lab
