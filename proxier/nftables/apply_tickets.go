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
		t.batch.Reset()
		remove := func(s layout.Set, k layout.PoolKey) { t.batch.DeleteElement(s.Name(), nft.Element{Key: k[:]}) }
		var owners []layout.PoolKey
		err := t.getElements(layout.Tickets, endpoints, func(k layout.PoolKey, e *nft.Element) {
			remove(layout.Tickets, k)
			owners = append(owners, layout.PoolKey(slices.Concat(k[:4], e.Data)))
		})
		if err == nil {
			err = t.getElements(layout.TicketOwner, owners,
				func(k layout.PoolKey, _ *nft.Element) { remove(layout.TicketOwner, k) })
		}
		if err != nil {
			return err
		}
		if err = t.commit(); !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return errors.New("removing tickets of endpoints that have left: they expired each time")
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
