package layout

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Packets to frontends with session affinity go through chains of their own:
//
//	sticky              how long is a client remembered?
//	  └─► keep-T          known: to its endpoint; or one more that may be remembered
//	        ├─► renew-T     draws an endpoint, and sends the client there
//	        │     └─► draw    how many slots?
//	        │           └─► draw-N  takes one, and remembers the client
//	        └─► forget      how many slots?
//	              └─► forget-N    takes one for this connection only
//
// There is a chain for each timeout and one for each number of slots, not one for
// each pair: the map of clients carries from draw-N to renew-T what was drawn.
//
// The map of clients holds no endpoint but a ticket: a random number that an
// endpoint of a pool gets when it is first drawn. An endpoint that leaves the pool
// loses its ticket, so that its clients, and no others, draw again, even if the
// endpoint soon comes back: the clients need not be searched for.

// affinityChains returns the chains of a class for frontends with session affinity.
func (l *layout) affinityChains(class lookupClass) []*Chain {
	if !l.has(Set{kind: withAffinity, class: class}) {
		return nil
	}
	p := class.prefix()
	draw, forget := newChain(p+"draw", "an endpoint for a client"), newChain(p+"forget", "an endpoint for one connection")
	var list []*Chain
	for _, s := range l.ordered(affinityBySize, class) {
		list = append(list, l.drawOne(s), l.forgetOne(s))
		draw.rule(inSet(l.frontend(class), s), goTo(p+"draw-"+s.suffix()))
		forget.rule(inSet(l.frontend(class), s), goTo(p+"forget-"+s.suffix()))
	}
	list = append(list, draw, forget)
	first := newChain(p+"sticky", "clients keep their endpoint")
	for _, s := range l.ordered(affinityByTimeout, class) {
		list = append(list, l.renew(s), l.keep(s))
		first.rule(inSet(l.frontend(class), s), goTo(p+"keep-"+s.suffix()))
	}
	return append(list, first)
}

// Registers of these rules, from 0: the frontend, at most 6, and later the target;
// what was looked up; the mark as it was; the client's address, which ends before
// its pool; the pool and its endpoint; the pool again and a ticket.
const (
	regFound = 6 + iota
	regMark
	regPool     register = 12
	regEndpoint register = 13
	regAgain    register = 14
	regTicket   register = 15
)

func (d *Dialect) regClient() register { return regPool - d.addrRegisters() }

// viaMark looks up a key that begins at register from, and loads the data by way of
// the packet's mark, which it restores: nft cannot print a rule that looks up the
// result of a lookup without that.
func viaMark(k loadedKey, from register, s Set, to ...register) stmt {
	load := mapLookup(k, from, s, regFound)
	exprs := append(load.exprs, loadMark(regMark).exprs...)
	exprs = append(exprs, storeMark(regFound))
	for _, r := range to {
		exprs = append(exprs, loadMark(r).exprs...)
	}
	return stmt{"meta mark set " + load.text + " meta mark set meta mark", append(exprs, storeMark(regMark))}
}

// inRegister is a number that is in its register already.
var inRegister = loadedKey{stmt: stmt{text: "meta mark"}}

func (l *layout) poolOf(class lookupClass) stmt {
	return viaMark(l.frontend(class), 0, Set{kind: affinityPool, class: class}, regPool, regAgain)
}

// client is a client's address and its pool; knownAs is the same, loaded already.
func (l *layout) client() loadedKey { return join(l.source(l.regClient()), inRegister) }

func (l *layout) knownAs() loadedKey { return loadedKey{stmt: stmt{text: l.client().text}} }

// poolAndNumber is a pool, and the number of an endpoint or a ticket of it.
var poolAndNumber = join(inRegister, inRegister)

var (
	ticketOf    = viaMark(poolAndNumber, regPool, Set{kind: tickets}, regTicket)
	ticketFrom  = viaMark(poolAndNumber, regAgain, Set{kind: ticketOwner}, regEndpoint)
	endpointAt  = mapLookup(poolAndNumber, regPool, Set{kind: poolTargets}, 0)
	loadTarget  = stmt{exprs: endpointAt.exprs} // targetFound has the text
	targetFound = stmt{text: endpointAt.text}
)

// toKnown sends a known client to its endpoint, and renews its timeouts.
func (l *layout) toKnown(s Set) []stmt {
	return []stmt{
		l.poolOf(s.class), viaMark(l.client(), l.regClient(), Set{kind: affinity}, regTicket),
		ticketFrom, loadTarget,
		l.store(affinity, l.knownAs(), l.regClient(), inRegister, regTicket, s.expiry),
		l.store(tickets, poolAndNumber, regPool, inRegister, regTicket, s.expiry),
		l.store(ticketOwner, poolAndNumber, regAgain, inRegister, regEndpoint, s.expiry),
		l.dnat(targetFound, 0),
	}
}

// keep returns the chain of a timeout.
func (l *layout) keep(s Set) *Chain {
	p := s.class.prefix()
	c := newChain(p+"keep-"+s.suffix(), "a client keeps its endpoint")
	c.rule(l.toKnown(s)...)
	moved := []stmt{l.poolOf(s.class), viaMark(l.client(), l.regClient(), Set{kind: affinity}, regTicket), goTo(p + "renew-" + s.suffix())}
	c.rules = append(c.rules, rule{stmts: moved, comment: "its endpoint has left"})
	c.rule(l.poolOf(s.class), charge(s.expiry), goTo(p+"renew-"+s.suffix()))
	c.rule(goTo(p + "forget"))
	return c
}

// renew returns the chain that finds an endpoint for a client that has none.
func (l *layout) renew(s Set) *Chain {
	p := s.class.prefix()
	c := newChain(p+"renew-"+s.suffix(), "a client gets an endpoint")
	c.rule(jump(p + "draw"))
	c.rule(l.toKnown(s)...)
	c.rule(goTo(p + "forget")) // there are too many clients
	return c
}

// drawOne returns the chain that picks one of a number of slots for a client and
// remembers it; renew sets the timeout.
func (l *layout) drawOne(s Set) *Chain {
	c := newChain(s.class.prefix()+"draw-"+s.suffix(), fmt.Sprintf("a client gets one of %d slots", s.size))
	chance := numgen(1<<32-1, regFound)
	for _, below := range moduli(s.size) {
		c.rule(l.poolOf(s.class), drawn(below), stmt{exprs: l.source(l.regClient()).exprs}, loadTarget,
			issue(poolAndNumber, regPool, chance, regFound, tickets), ticketOf,
			issue(poolAndNumber, regAgain, inRegister, regEndpoint, ticketOwner),
			dynset(dynsetDelete, affinity, l.knownAs(), l.regClient(), inRegister, regTicket, 0),
			issue(l.knownAs(), l.regClient(), inRegister, regTicket, affinity), returnVerdict)
	}
	return c
}

// forgetOne returns the chain that picks one of a number of slots for one connection.
func (l *layout) forgetOne(s Set) *Chain {
	c := newChain(s.class.prefix()+"forget-"+s.suffix(), fmt.Sprintf("one of %d slots", s.size))
	for _, below := range moduli(s.size) {
		c.rule(l.poolOf(s.class), drawn(below), l.dnat(endpointAt, 0))
	}
	return c
}

func drawn(below uint32) stmt {
	return viaMark(join(inRegister, numgen(below, regEndpoint)), regPool, Set{kind: poolSlots}, regEndpoint)
}

// store renews an element, issue adds one that does not exist. Neither changes the
// data of an existing one: on a packet's path the kernel can only delete and add it.
func (l *layout) store(k kind, key loadedKey, from register, data loadedKey, reg register, timeout time.Duration) stmt {
	return dynset(unix.NFT_DYNSET_OP_UPDATE, k, key, from, data, reg, timeout)
}

func issue(key loadedKey, from register, data loadedKey, reg register, k kind) stmt {
	c := dynset(unix.NFT_DYNSET_OP_ADD, k, key, from, data, reg, longestExpiry)
	c.exprs = slices.Concat(data.exprs, c.exprs)
	return c
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, <linux/netfilter/nf_tables.h>, from Linux 5.4 on.
const dynsetDelete = 2

// dynset changes an element of a map: its key begins at register from, its data is in reg.
func dynset(op uint32, k kind, key loadedKey, from register, data loadedKey, reg register, timeout time.Duration) stmt {
	s := Set{kind: k}
	word := map[uint32]string{
		unix.NFT_DYNSET_OP_ADD: "add", unix.NFT_DYNSET_OP_UPDATE: "update", dynsetDelete: "delete",
	}[op]
	words := word + " @" + s.Name() + " { " + key.text
	if timeout > 0 {
		words += " timeout " + nftDuration(timeout)
	}
	return stmt{words + " : " + data.text + " }", []expr.Any{&expr.Dynset{
		SrcRegKey: from.number(), SrcRegData: reg.number(), SetName: s.Name(), Operation: op, Timeout: timeout,
	}}}
}

// charge matches while a pool may remember one more client: a burst of PoolClients,
// and as many again within a timeout. Beyond that, a client must expire first.
func charge(timeout time.Duration) stmt {
	s := Set{kind: newClients}
	each := uint64(timeout / time.Second)
	limit := &expr.Limit{
		Type: expr.LimitTypePkts, Rate: (uint64(PoolClients)*3600 + each - 1) / each, Unit: expr.LimitTimeHour, Burst: PoolClients,
	}
	words := fmt.Sprintf("update @%s { meta mark timeout %s limit rate %d/hour burst %d packets }",
		s.Name(), nftDuration(timeout), limit.Rate, limit.Burst)
	return stmt{words, []expr.Any{&expr.Dynset{
		SrcRegKey: regPool.number(), SetName: s.Name(), Operation: unix.NFT_DYNSET_OP_UPDATE,
		Timeout: timeout, Exprs: []expr.Any{limit},
	}}}
}
