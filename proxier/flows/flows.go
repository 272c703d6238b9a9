package flows

import (
	"context"
	"net/netip"

	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/source"
)

// A Flow is a flow or connection that connection tracking knows.
type Flow struct {
	Src, Dst netip.AddrPort // as the client sent its first packet
	Reply    netip.AddrPort // where replies come from: the endpoint, or Dst when nothing was translated

	Unreplied bool // none has come yet
	Opening   bool // a connection that its client has not confirmed yet
	Ended     bool // a connection that is over: its client needs not be told
	Reopening bool // a connection that Reopen was said of before
	Movable   bool // Move is more than Remove
}

// A Query says which flows of a protocol to look at: those that a client sent to one of
// To, or that were sent from one of From; if both are empty, all. Of these only those whose
// replies come from one of At, unless that is empty.
type Query struct {
	Protocol     source.Protocol
	From, To, At []netip.AddrPort
}

// Tracking is the part of connection tracking that Workers need.
type Tracking interface {
	// Prune looks at every flow of a family that q is about and does with it, by its
	// full tuple, what judge says. It returns how many it removed,
	// also with an error. A flow that no longer exists is no error.
	Prune(ctx context.Context, fam policy.Family, q Query, judge func(Flow) Verdict) (int, error)

	// Challenge has the clients of TCP connections that were removed send a packet. It
	// returns the first error.
	Challenge(fam policy.Family, removed []Flow) error
}

// A Verdict says what becomes of a flow that was looked at.
type Verdict uint8

// The verdicts.
const (
	Keep   Verdict = iota
	Remove         // its next packet is a new flow to the rules
	Move           // the same, and answers under way still find the client
	Reopen         // a connection of TCP: it goes on, and the first SYN after its end is a new one to the rules
	await          // it is looked at again: half-open, one of SCTP until it ends, or one of UDP that cannot move
)
