package nftables

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// Endpoints lose their ticket after the transaction that took them from their pool,
// so that no packet draws a new one. Tickets are one an endpoint at most: the
// clients, of which there may be a million, are never listed. One may expire between
// being read and removed, which the kernel answers with an error: then they
// are read again.
const revokeAttempts = 20

// A poolNumber is a pool and a number of it, an endpoint's or a ticket: a key of
// the maps of tickets.
type poolNumber [8]byte

// revokeAtOnce is of how many endpoints tickets are removed at once: one that expires
// meanwhile has all of them read again.
const revokeAtOnce = 500

// revoke removes the tickets of endpoints.
func (b *Backend) revoke(ctx context.Context, endpoints []poolNumber) error {
	for part := range slices.Chunk(endpoints, revokeAtOnce) {
		if err := cmp.Or(ctx.Err(), b.revokePart(part)); err != nil {
			return err
		}
		proxier.Progressed(ctx)
	}
	return nil
}

func (b *Backend) revokePart(endpoints []poolNumber) error {
	for range revokeAttempts {
		found, err := b.ticketsOf(endpoints)
		if err != nil || len(found) == 0 {
			return err
		}
		if err = b.commitRevoked(found); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errors.New("tickets of endpoints that have left are not removed")
}

// ticketsOf returns the elements that make the tickets of endpoints.
func (b *Backend) ticketsOf(endpoints []poolNumber) (found []setKey, err error) {
	var owners []poolNumber
	err = b.each(tickets, endpoints, func(k poolNumber, e *nft.Element) {
		found = append(found, setKey{tickets, k})
		owners = append(owners, poolNumber(slices.Concat(k[:4], e.Data)))
	})
	if err != nil {
		return nil, err
	}
	err = b.each(ticketOwner, owners, func(k poolNumber, _ *nft.Element) {
		found = append(found, setKey{ticketOwner, k})
	})
	return found, err
}

type setKey struct {
	kind kind
	key  poolNumber
}

// each asks for elements by their keys.
func (b *Backend) each(k kind, keys []poolNumber, found func(poolNumber, *nft.Element)) error {
	key := func(i int) []byte { return keys[i][:] }
	return b.conn.Get(b.table(), set{kind: k}.name(), len(keys), key, func(i int, e *nft.Element) {
		if len(e.Data) == 4 {
			found(keys[i], e)
		}
	})
}

func (b *Backend) commitRevoked(found []setKey) error {
	b.batch.Reset()
	for _, f := range found {
		b.batch.DeleteElement(set{kind: f.kind}.name(), nft.Element{Key: f.key[:]})
	}
	return b.commit()
}

// revokeLost removes the tickets of endpoints that a change took from their pool.
func (b *Backend) revokeLost(ctx context.Context, changes []proxier.ServiceChange) error {
	lost := map[poolNumber]bool{}
	for _, c := range changes {
		b.eachEndpoint(c.Old, func(e poolNumber) { lost[e] = true })
	}
	for _, c := range changes {
		b.eachEndpoint(c.New, func(e poolNumber) { delete(lost, e) })
	}
	if len(lost) == 0 || !slices.Contains(setsInUse(b.held.counts()), set{kind: tickets}) {
		return nil
	}
	list := make([]poolNumber, 0, len(lost))
	for e := range lost {
		list = append(list, e)
	}
	return b.revoke(ctx, list)
}

func (b *Backend) eachEndpoint(res *proxier.Resolved, do func(poolNumber)) {
	if res == nil {
		return
	}
	for _, p := range res.Pools {
		if p.Affinity <= 0 {
			continue
		}
		id := b.held.pools.id(p)
		for _, endpoint := range endpointIDs(p) {
			do(poolNumber(putNumber(putNumber(nil, id), endpoint)))
		}
	}
}

// lostTickets lists the tickets, those whose endpoint has left its pool.
func (b *Backend) lostTickets(c *content) (list []nft.Element, err error) {
	targets := c.sets[set{kind: poolTargets}]
	err = b.conn.Scan(b.table(), set{kind: tickets}.name(), func(e *nft.Element) error {
		if len(e.Key) == len(poolNumber{}) && targets.find(e.Key) < 0 {
			list = append(list, clone(e))
		}
		return nil
	})
	return withoutTwins(list), err
}

// revokeListed removes the tickets that lostTickets returned.
func (b *Backend) revokeListed(ctx context.Context, list []nft.Element) error {
	endpoints := make([]poolNumber, len(list))
	for i, e := range list {
		endpoints[i] = poolNumber(e.Key)
	}
	return b.revoke(ctx, endpoints)
}
