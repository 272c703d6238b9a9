package nftables

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A host that takes over the connections of another, as scheduler maglev has it do, knows none
// of them until the client sends something: only then does it learn which frontend the endpoint
// answers for. What the endpoint sends before would reach the client with the address of the
// endpoint, which the client answers by a reset; and connection tracking would take it for a
// connection of the endpoint's own, whose ports the real one could no longer have. So it is
// dropped, and the endpoint sends it again.
//
// What it must not meet are connections that clients make to the endpoint itself, of which
// only the answers pass this host. Connection tracking calls the first of these, with SYN and
// ACK, invalid: from then on they are known to be none of ours.

// priorityAnswers is after connection tracking, -200, and before addresses are translated.
const priorityAnswers = -150

// aroundExpiry is how long a connection that goes around this host is remembered after
// connection tracking last took it for a new one, which it does after 5 minutes of silence.
const aroundExpiry = time.Hour

// answers returns the chain that holds back what endpoints send in connections that nobody knows.
func (l *layout) answers() *chain {
	c := newBaseChain("answers", "filter", unix.NF_INET_PRE_ROUTING, priorityAnswers)
	target := l.source(0)
	target = join(target, loadProtocol(target.next), loadTCPPort("sport", 0, target.next+1))
	target = join(target, l.source(target.next))
	ofEndpoint, known := inSet(target, set{kind: hairpins}), inSet(l.connection(), set{kind: around})
	c.rule(isInvalid, tcpFlags("tcp flags syn,ack / syn,ack", synACK, synACK), ofEndpoint, l.rememberAround())
	c.rule(isNew, notSYN, ofEndpoint, known, l.rememberAround(), returnVerdict)
	c.rule(isNew, notSYN, ofEndpoint, dropVerdict)
	return c
}

const (
	flagSYN = 0x02
	synACK  = 0x12
)

var (
	isInvalid = flag("ct state invalid", expr.CtKeySTATE, expr.CtStateBitINVALID)
	notSYN    = tcpFlags("tcp flags ! syn", flagSYN, 0)
)

// tcpFlags matches TCP segments of which some flags are as they should be.
func tcpFlags(words string, mask, want byte) stmt {
	return stmt{words, append(tcpOnly.exprs[:len(tcpOnly.exprs):len(tcpOnly.exprs)],
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		bitwise(1, []byte{mask}, []byte{0}), equals([]byte{want}))}
}

// connection loads the addresses and ports of a TCP segment.
func (l *layout) connection() loadedKey {
	from := l.source(0)
	to := l.destination(from.next)
	sport := loadTCPPort("sport", 0, to.next)
	return join(from, to, sport, loadTCPPort("dport", 2, sport.next))
}

// loadTCPPort loads a port of what is known to be TCP, as nft prints it there.
func loadTCPPort(side string, offset uint32, at register) loadedKey {
	load := &expr.Payload{DestRegister: at.number(), Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
	return loadedKey{stmt{"tcp " + side, []expr.Any{load}}, at + 1}
}

// rememberAround remembers a connection that goes around this host, or renews its timeout.
func (l *layout) rememberAround() stmt {
	key, s := l.connection(), set{kind: around}
	words := "update @" + s.name() + " { " + key.text + " timeout " + nftDuration(aroundExpiry) + " }"
	return stmt{words, append(key.exprs, &expr.Dynset{
		SrcRegKey: register(0).number(), SetName: s.name(), Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: aroundExpiry,
	})}
}
