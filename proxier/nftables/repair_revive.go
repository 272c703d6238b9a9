package nftables

import (
	"context"
	"errors"
	"math"

	"svcproxy/netutil/nft"
)

// revive gives packets the chains that they should meet, at once, if somebody has
// removed our table, put it to sleep, or changed its rules. The kernel remembers
// connections without us, but their packets reach the wrong socket, which resets
// them, as long as nothing translates. It reports whether the table was made: its
// chains are there, without elements.
func (b *Backend) revive(ctx context.Context) (bool, error) {
	if b.mirror == nil || !b.modified.Load() {
		return false, nil
	}
	exists, dormant, err := b.conn.Lookup(b.table())
	switch {
	case err != nil:
		return false, err
	case exists && !dormant:
		return false, b.reviveStructure(ctx)
	}
	chains, err := b.mirror.inOrder(b.dialect)
	if err != nil {
		return false, err
	}
	w := b.writer(ctx, chunkBytes)
	b.batch.AddTable(tableComment)
	if !exists {
		w.sets(setsInUse(b.mirror.counts()))
		w.chains(chains)
	}
	w.flush()
	return !exists && w.err == nil, w.err
}

// reviveShape makes chains and rules what they should be, without a look at elements,
// of which there may be a million. Sets that are not as they should be are made
// anew, and what is refused by them then waits for their elements.
func (b *Backend) reviveStructure(ctx context.Context) error {
	have, err := b.conn.List(b.table())
	switch {
	case errors.Is(err, nft.ErrChanged): // whoever compares all of it has the patience
		return nil
	case err != nil:
		return err
	case have == nil || have.Others > 0 || b.sameStructure(have, b.mirror.chains, setsInUse(b.mirror.counts())):
		return nil
	}
	d := &difference{want: &content{dialect: b.dialect}, counts: b.mirror.counts(), have: have, rewrite: true}
	chains, err := b.mirror.inOrder(b.dialect)
	if err != nil {
		return err
	}
	w := b.writer(ctx, math.MaxInt)
	w.prepare(d)
	w.chains(chains)
	if d.sameSets() {
		w.deferredRules(chains)
	}
	w.flush()
	return w.err
}
