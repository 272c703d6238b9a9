// Package maglev fills tables that choose an endpoint by a hash of the client, so that
// every host with the same endpoints and weights chooses the same one.
//
// It is the algorithm of Maglev (Eisenbud et al., NSDI 2016, section 3.4): the endpoints
// take turns, and each takes the free slot that comes next in an order of its own. An
// endpoint that leaves gives away its slots, and few of the others change.
//
// The paper leaves weights open. Here the number of turns follows them: the nth turn of an
// endpoint comes when n - 1/2 of its weight is due, so that its share of the slots is
// rounded to the nearest (the method of Webster), and the first turn comes before all
// others, so that the least weight has a slot. Equal weights give the table of the paper.
package maglev

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// sizes are primes, and up to how many endpoints a table has so many slots. They are few:
// a service that crosses from one to the next moves most of its clients. Where one of 5,
// 20, 50 or 200 endpoints of equal weight leaves, at most 1.7, 1.8, 2.0 or 1.9 % of the
// slots of the others moved, whichever it was (TestDisruption).
var sizes = []struct{ endpoints, slots int }{
	{5, 2039}, {50, 8191}, {500, 16381},
}

// An Endpoint is what slots are given to.
type Endpoint struct {
	netip.AddrPort
	Weight uint16 // 0 is taken for 1
}

// MaxSize is the size of the largest table. Of more endpoints than that, only so many
// have a slot.
const MaxSize = 65521

// Size returns how many slots the table of a service with so many endpoints has.
func Size(endpoints int) int {
	for _, s := range sizes {
		if endpoints <= s.endpoints {
			return s.slots
		}
	}
	return MaxSize
}

// Fill appends a table of a prime size to buf: for each slot the index of its endpoint. It
// depends on the addresses, ports and weights of the endpoints, of which no two have the
// same address and port, and not on their order. Without endpoints the table is empty.
func Fill(buf []uint32, size int, endpoints []Endpoint) []uint32 {
	if len(endpoints) == 0 {
		return buf
	}
	start := len(buf)
	buf = append(buf, make([]uint32, size)...)
	table, q := buf[start:], newQueue(endpoints, size)
	taken := make([]bool, size)
	for range size {
		t := &q[0]
		for taken[t.slot] {
			t.slot = (t.slot + t.skip) % size
		}
		taken[t.slot], table[t.slot] = true, uint32(t.index)
		t.turns++
		down(q)
	}
	return buf
}

// A taker is an endpoint that takes turns.
type taker struct {
	index      int // of the endpoint
	rank       int // in order of address and port
	weight     uint64
	turns      uint64 // that it has had
	slot, skip int    // it takes the slot if that is free, or else goes on by skip
}

// before reports whether the next turn of t comes before that of o.
func (t *taker) before(o *taker) bool {
	if t.turns == 0 || o.turns == 0 {
		return cmp.Or(cmp.Compare(t.turns, o.turns), cmp.Compare(t.rank, o.rank)) < 0
	}
	mine, other := (2*t.turns+1)*o.weight, (2*o.turns+1)*t.weight
	return cmp.Or(cmp.Compare(mine, other), cmp.Compare(t.rank, o.rank)) < 0
}

// newQueue returns a heap of takers, of which the first is the next: the endpoints in order of address and port, which is that of their first
// turns. Where they begin and how they go on is of a hash of both, the same everywhere.
func newQueue(endpoints []Endpoint, size int) []taker {
	q := make([]taker, len(endpoints))
	for i, e := range endpoints {
		sum := sha256.Sum256([]byte(e.AddrPort.String()))
		q[i] = taker{
			index: i, weight: uint64(max(1, e.Weight)),
			slot: int(binary.BigEndian.Uint64(sum[:8]) % uint64(size)),
			skip: int(binary.BigEndian.Uint64(sum[8:16])%uint64(size-1)) + 1,
		}
	}
	slices.SortFunc(q, func(a, b taker) int { return endpoints[a.index].Compare(endpoints[b.index].AddrPort) })
	for i := range q {
		q[i].rank = i
	}
	return q
}

// down moves the first taker, which has had a turn, behind those that come before it now.
func down(q []taker) {
	for i, next := 0, 1; next < len(q); i, next = next, 2*next+1 {
		if next+1 < len(q) && q[next+1].before(&q[next]) {
			next++
		}
		if !q[next].before(&q[i]) {
			return
		}
		q[i], q[next] = q[next], q[i]
	}
}
