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
func (l *chainRenderer) affinityChains(class lookupClass) []*Chain {
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
		list = append(list, l.renew(s), l.keepChain(s))
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
func viaMark(k loadedKey, from register, s Set, to ...register) []expr.Any {
	exprs := append(mapLookup(k, from, s, regFound), loadMark(regMark).exprs...)
	exprs = append(exprs, storeMark(regFound))
	for _, r := range to {
		exprs = append(exprs, loadMark(r).exprs...)
	}
	return append(exprs, storeMark(regMark))
}

func (d *Dialect) poolOf(class lookupClass) []expr.Any {
	return viaMark(d.frontend(class), 0, Set{kind: affinityPool, class: class}, regPool, regAgain)
}

// client loads a client's address, before its pool, which is loaded.
func (d *Dialect) client() loadedKey { return d.source(d.regClient()) }

// loaded is a key whose fields are in their registers already.
var loaded loadedKey

var (
	ticketOf   = viaMark(loaded, regPool, Tickets, regTicket)
	ticketFrom = viaMark(loaded, regAgain, TicketOwner, regEndpoint)
	loadTarget = mapLookup(loaded, regPool, PoolTargets, 0)
)

// toKnown sends a known client to its endpoint, and renews its timeouts.
func (d *Dialect) toKnown(s Set) []expr.Any {
	return slices.Concat(
		d.poolOf(s.class), d.ticketOfClient(), ticketFrom, loadTarget,
		store(Affinity, d.regClient(), regTicket, s.expiry),
		store(Tickets, regPool, regTicket, s.expiry),
		store(TicketOwner, regAgain, regEndpoint, s.expiry),
		d.dnat(0),
	)
}

func (d *Dialect) ticketOfClient() []expr.Any {
	return viaMark(d.client(), d.regClient(), Affinity, regTicket)
}

// keepChain returns the chain of a timeout.
func (d *Dialect) keepChain(s Set) *Chain {
	p := s.class.prefix()
	c := newChain(p+"keep-"+s.suffix(), "a client keeps its endpoint")
	c.rule(d.toKnown(s))
	c.commented("its endpoint has left", d.poolOf(s.class), d.ticketOfClient(), goTo(p+"renew-"+s.suffix()))
	c.rule(d.poolOf(s.class), charge(s.expiry), goTo(p+"renew-"+s.suffix()))
	c.rule(goTo(p + "forget"))
	return c
}

// renew returns the chain that finds an endpoint for a client that has none.
func (d *Dialect) renew(s Set) *Chain {
	p := s.class.prefix()
	c := newChain(p+"renew-"+s.suffix(), "a client gets an endpoint")
	c.rule(jump(p + "draw"))
	c.rule(d.toKnown(s))
	c.rule(goTo(p + "forget")) // there are too many clients
	return c
}

// drawOne returns the chain that picks one of a number of slots for a client and
// remembers it; renew sets the timeout.
func (d *Dialect) drawOne(s Set) *Chain {
	c := newChain(s.class.prefix()+"draw-"+s.suffix(), fmt.Sprintf("a client gets one of %d slots", s.size))
	chance := numgen(1<<32-1, regFound)
	for _, below := range moduli(s.size) {
		c.rule(d.poolOf(s.class), drawn(below), d.client().exprs, loadTarget,
			chance.exprs, issue(Tickets, regPool, regFound), ticketOf,
			issue(TicketOwner, regAgain, regEndpoint),
			dynset(dynsetDelete, Affinity, d.regClient(), regTicket, 0),
			issue(Affinity, d.regClient(), regTicket), returnVerdict)
	}
	return c
}

// forgetOne returns the chain that picks one of a number of slots for one connection.
func (d *Dialect) forgetOne(s Set) *Chain {
	c := newChain(s.class.prefix()+"forget-"+s.suffix(), fmt.Sprintf("one of %d slots", s.size))
	for _, below := range moduli(s.size) {
		c.rule(d.poolOf(s.class), drawn(below), loadTarget, d.dnat(0))
	}
	return c
}

func drawn(below uint32) []expr.Any {
	return viaMark(numgen(below, regEndpoint), regPool, Set{kind: poolSlots}, regEndpoint)
}

// store renews an element, issue adds one that does not exist. Neither changes the
// data of an existing one: on a packet's path the kernel can only delete and add it.
func store(s Set, key, data register, timeout time.Duration) []expr.Any {
	return dynset(unix.NFT_DYNSET_OP_UPDATE, s, key, data, timeout)
}

func issue(s Set, key, data register) []expr.Any {
	return dynset(unix.NFT_DYNSET_OP_ADD, s, key, data, longestExpiry)
}

// dynsetDelete is NFT_DYNSET_OP_DELETE, <linux/netfilter/nf_tables.h>, from Linux 5.4 on.
const dynsetDelete = 2

// dynset changes an element of a map: its key begins at register key, its data is in data.
func dynset(op uint32, s Set, key, data register, timeout time.Duration) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: key.number(), SrcRegData: data.number(), SetName: s.Name(), Operation: op, Timeout: timeout,
	}}
}

// charge matches while a pool may remember one more client: a burst of PoolClients,
// and as many again within a timeout. Beyond that, a client must expire first.
func charge(timeout time.Duration) []expr.Any {
	each := uint64(timeout / time.Second)
	limit := &expr.Limit{
		Type: expr.LimitTypePkts, Rate: (uint64(PoolClients)*3600 + each - 1) / each, Unit: expr.LimitTimeHour, Burst: PoolClients,
	}
	return []expr.Any{&expr.Dynset{
		SrcRegKey: regPool.number(), SetName: Set{kind: newClients}.Name(), Operation: unix.NFT_DYNSET_OP_UPDATE,
		Timeout: timeout, Exprs: []expr.Any{limit},
	}}
}
