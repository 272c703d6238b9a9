// Package flows ends what connection tracking remembers of frontends and endpoints that are gone.
//
// The kernel sends a flow where it went before for as long as the flow lasts, whatever the rules say by then. A flow
// of UDP whose endpoint has left is removed, or moved, so that its next packet is balanced again. Connections of TCP and
// SCTP go on, unless their service has them closed; then clients are made to notice. A client that
// connects again from the same port gets another endpoint.
//
// A Worker does this for one family and protocol, after each Sync that succeeded. What it needs of connection tracking
// is Tracking; package netutil/conntrack has it.
package flows
