package nftables

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// Endpoints lose their ticket (layout/affinity.go) after the transaction that took them
// from their pool, so that no packet draws a new one. An endpoint has one ticket at most:
// the clients, of which there may be a million, are never listed.

// revokeAttempts is how often tickets are read and removed: one that expires in between
// makes the removal fail.
const revokeAttempts = 20

// revokeAtOnce is how many endpoints' tickets are removed in one transaction: if one
// expires meanwhile, all of them are read again.
const revokeAtOnce = 500

// revoke removes the tickets of endpoints.
func (t *tableConn) revoke(ctx context.Context, endpoints []layout.PoolKey) error {
	for part := range slices.Chunk(endpoints, revokeAtOnce) {
		if err := cmp.Or(ctx.Err(), t.revokePart(part)); err != nil {
			return err
		}
		proxier.Progressed(ctx)
	}
	return nil
}

func (t *tableConn) revokePart(endpoints []layout.PoolKey) error {
	for range revokeAttempts {
		found, err := t.ticketsOf(endpoints)
		if err != nil || len(found) == 0 {
			return err
		}
		if err = t.commitRevoked(found); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errors.New("removing tickets of endpoints that have left: they expired each time")
}

// ticketsOf returns the elements that hold the tickets of endpoints.
func (t *tableConn) ticketsOf(endpoints []layout.PoolKey) (found []ticketElement, err error) {
	var owners []layout.PoolKey
	err = t.getElements(layout.Tickets, endpoints, func(k layout.PoolKey, e *nft.Element) {
		found = append(found, ticketElement{layout.Tickets, k})
		owners = append(owners, layout.PoolKey(slices.Concat(k[:4], e.Data)))
	})
	if err != nil {
		return nil, err
	}
	err = t.getElements(layout.TicketOwner, owners, func(k layout.PoolKey, _ *nft.Element) {
		found = append(found, ticketElement{layout.TicketOwner, k})
	})
	return found, err
}

type ticketElement struct {
	set layout.Set
	key layout.PoolKey
}

// getElements asks for elements by their keys.
func (t *tableConn) getElements(s layout.Set, keys []layout.PoolKey, found func(layout.PoolKey, *nft.Element)) error {
	key := func(i int) []byte { return keys[i][:] }
	return t.conn.Get(t.Table(), s.Name(), len(keys), key, func(i int, e *nft.Element) {
		if len(e.Data) == 4 {
			found(keys[i], e)
		}
	})
}

func (t *tableConn) commitRevoked(found []ticketElement) error {
	t.batch.Reset()
	for _, f := range found {
		t.batch.DeleteElement(f.set.Name(), nft.Element{Key: f.key[:]})
	}
	return t.commit()
}

// revokeLost removes the tickets of endpoints that left their pool in a delta.
func (t *tableConn) revokeLost(ctx context.Context, m *layout.Mirror, changes []policy.ServiceChange) error {
	ids, lost := m.Pools, map[layout.PoolKey]bool{}
	for _, c := range changes {
		ids.EachEndpoint(c.Old, func(e layout.PoolKey) { lost[e] = true })
	}
	for _, c := range changes {
		ids.EachEndpoint(c.New, func(e layout.PoolKey) { delete(lost, e) })
	}
	if len(lost) == 0 || !slices.Contains(layout.SetsInUse(m.Counts()), layout.Tickets) {
		return nil
	}
	return t.revoke(ctx, slices.Collect(maps.Keys(lost)))
}
