package layout

import (
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A host that takes over the connections of another, as scheduler maglev has it do, knows none
// of them until the client sends something: only then does it learn which frontend the endpoint
// answers for. What the endpoint sends before would reach the client with the address of the
// endpoint, which the client answers by a reset. So it is held back for holdTime: dropped, and the endpoint
// sends it again.
//
// Connections that clients make to the endpoint itself, of which only the answers pass this host, look the
// same: every segment of theirs is new to connection tracking. It calls the first, with SYN and ACK, invalid,
// by which they are known; one that began elsewhere is late by holdTime, once, and then known too.

// priorityAnswers is after connection tracking, -200, and before addresses are translated.
const priorityAnswers = -150

const (
	// holdTime is how long answers are held back: what a client that works sends in, and an endpoint
	// sends again at 25 s at the latest.
	holdTime = 20 * time.Second

	// begunExpiry is how long a connection around this host is remembered from its beginning, and aroundExpiry
	// from its last segment: more than the two hours after which Linux looks whether the peer lives.
	begunExpiry  = 10 * time.Minute
	aroundExpiry = 3 * time.Hour
)

// answers returns the chain that holds back what endpoints send in connections that nobody knows. A set
// that is full holds nothing back.
func (l *chainRenderer) answers() *Chain {
	c := newBaseChain("answers", "filter", unix.NF_INET_PRE_ROUTING, priorityAnswers)
	target := l.source(0)
	target = join(target, loadProtocol(target.next), loadPort(sourcePort, target.next+1))
	target = join(target, l.source(target.next))
	ofEndpoint, goesAround, isHeld := inSet(target, Set{kind: hairpins}), inSet(l.connection(), Set{kind: around}), inSet(l.connection(), Set{kind: held})
	c.rule(isInvalid, tcpFlags(synACK, synACK), ofEndpoint, l.remember(around, unix.NFT_DYNSET_OP_ADD, begunExpiry))
	c.rule(isNew, notSYN, ofEndpoint, isHeld, dropVerdict)
	c.rule(isNew, notSYN, ofEndpoint, goesAround, l.remember(around, unix.NFT_DYNSET_OP_UPDATE, aroundExpiry), returnVerdict)
	c.rule(isNew, notSYN, ofEndpoint, l.remember(around, unix.NFT_DYNSET_OP_ADD, aroundExpiry), l.remember(held, unix.NFT_DYNSET_OP_ADD, holdTime), dropVerdict)
	return c
}

const (
	flagSYN = 0x02
	synACK  = 0x12
)

var (
	isInvalid = flag(expr.CtKeySTATE, expr.CtStateBitINVALID)
	notSYN    = tcpFlags(flagSYN, 0)
)

// tcpFlags matches TCP segments of which some flags are as they should be.
func tcpFlags(mask, want byte) []expr.Any {
	return append(slices.Clip(tcpOnly),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		bitwise([]byte{mask}, []byte{0}), equals([]byte{want}))
}

// connection loads the addresses and ports of a TCP segment.
func (l *chainRenderer) connection() loadedKey {
	from := l.source(0)
	to := l.destination(from.next)
	return join(from, to, loadPort(sourcePort, to.next), loadPort(destinationPort, to.next+1))
}

// remember puts a connection into a set, for a time; to update is to begin that again.
func (l *chainRenderer) remember(kind kind, op uint32, expiry time.Duration) []expr.Any {
	return append(l.connection().exprs, &expr.Dynset{
		SrcRegKey: register(0).number(), SetName: Set{kind: kind}.Name(), Operation: op, Timeout: expiry,
	})
}
