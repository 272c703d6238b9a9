package nftables

import (
	"bytes"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"svcproxy/netutil/nft"
	"svcproxy/proxier"
)

// Clients are forgotten after the transaction that took their endpoint away, so
// that no packet brings one back. A client's element may expire between listing
// and removal, which the kernel answers with an error: they go a few at a time,
// and what fails is listed again.
const (
	forgetAtOnce   = 64
	forgetAttempts = 20
)

// clients returns those of the map affinity whose pool and endpoint are gone.
func (b *Backend) clients(gone func(pool, endpoint []byte) bool) (list []nft.Element, err error) {
	addrLen := b.fam.Bits() / 8
	err = b.conn.Elements(b.table(), set{kind: affinity}.name(), func(e *nft.Element) error {
		if len(e.Key) == addrLen+4 && gone(e.Key[addrLen:], e.Data) {
			list = append(list, nft.Element{Key: bytes.Clone(e.Key), Data: bytes.Clone(e.Data)})
		}
		return nil
	})
	return list, err
}

// forget removes clients, and leaves those that the kernel has forgotten by itself.
func (b *Backend) forget(list []nft.Element) error {
	if len(list) == 0 {
		return nil
	}
	for n := 1; ; n++ {
		failed, err := b.forgetOnce(list)
		if len(failed) == 0 || err != nil {
			return err
		}
		left := make(map[string]bool, len(failed))
		for _, e := range failed {
			left[string(e.Key)+string(e.Data)] = true
		}
		list, err = b.matching(left)
		if err != nil || len(list) == 0 {
			return err
		}
		if n == forgetAttempts {
			return errors.New("clients of endpoints that have left are not forgotten")
		}
	}
}

// matching lists the clients of a set of keys and data that the kernel still has.
func (b *Backend) matching(want map[string]bool) ([]nft.Element, error) {
	var list []nft.Element
	err := b.conn.Elements(b.table(), set{kind: affinity}.name(), func(e *nft.Element) error {
		if want[string(e.Key)+string(e.Data)] {
			list = append(list, clone(e))
		}
		return nil
	})
	return list, err
}

// forgetOnce removes clients and returns those among which one had expired.
func (b *Backend) forgetOnce(list []nft.Element) (failed []nft.Element, err error) {
	for part := range slices.Chunk(list, forgetAtOnce) {
		b.batch.Reset()
		for _, e := range part {
			b.batch.DeleteElement(set{kind: affinity}.name(), e)
		}
		if err := b.commit(); errors.Is(err, unix.ENOENT) {
			failed = append(failed, part...)
		} else if err != nil {
			return nil, err
		}
	}
	return failed, nil
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
	list, err := b.clients(func(pool, endpoint []byte) bool {
		return lost[poolEndpoint(slices.Concat(pool, endpoint))]
	})
	if err != nil {
		return err
	}
	return b.forget(list)
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
