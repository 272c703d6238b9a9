package nftables

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// Clients are forgotten after the transaction that took their endpoint away, so
// that no packet brings one back. A client's element may expire between listing
// and removal, which the kernel answers with an error, and a listing may be
// incomplete: they go a few at a time, until a listing shows none.
const (
	forgetAtOnce   = 64
	forgetAttempts = 20
)

// forget removes the clients whose pool and endpoint are gone.
func (b *Backend) forget(gone func(pool, endpoint []byte) bool) error {
	for range forgetAttempts {
		list, err := b.clients(gone)
		if err != nil || len(list) == 0 {
			return err
		}
		if err := b.forgetOnce(list); err != nil {
			return err
		}
	}
	return errors.New("clients of endpoints that have left are not forgotten")
}

// clients lists the map affinity, those whose pool and endpoint are gone.
func (b *Backend) clients(gone func(pool, endpoint []byte) bool) (list []nft.Element, err error) {
	addrLen := b.fam.Bits() / 8
	err = b.conn.Elements(b.table(), set{kind: affinity}.name(), func(e *nft.Element) error {
		if len(e.Key) == addrLen+4 && gone(e.Key[addrLen:], e.Data) {
			list = append(list, clone(e))
		}
		return nil
	})
	return withoutTwins(list), err
}

// forgetOnce removes clients, but for those next to one that had expired.
func (b *Backend) forgetOnce(list []nft.Element) error {
	for part := range slices.Chunk(list, forgetAtOnce) {
		b.batch.Reset()
		for _, e := range part {
			b.batch.DeleteElement(set{kind: affinity}.name(), e)
		}
		if err := b.commit(); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// A poolEndpoint is a pool and an endpoint by their numbers, as in the map affinity.
type poolEndpoint [8]byte

// forgetLost removes the clients of endpoints that a change took from their pool.
func (b *Backend) forgetLost(changes []proxier.ServiceChange) error {
	lost := map[poolEndpoint]bool{}
	for _, c := range changes {
		b.eachEndpoint(c.Old, func(e poolEndpoint) { lost[e] = true })
		b.eachEndpoint(c.New, func(e poolEndpoint) { delete(lost, e) })
	}
	if len(lost) == 0 || !slices.Contains(setsInUse(b.held.counts()), set{kind: affinity}) {
		return nil
	}
	return b.forget(func(pool, endpoint []byte) bool {
		return lost[poolEndpoint(slices.Concat(pool, endpoint))]
	})
}

func (b *Backend) eachEndpoint(res *proxier.Resolved, do func(poolEndpoint)) {
	if res == nil {
		return
	}
	for _, p := range res.Pools {
		if p.Affinity <= 0 {
			continue
		}
		id := b.held.pools.id(p)
		for _, endpoint := range endpointIDs(p) {
			do(poolEndpoint(putNumber(putNumber(nil, id), endpoint)))
		}
	}
}
