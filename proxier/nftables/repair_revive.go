package nftables

import (
	"context"
	"errors"
	"math"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// revive restores the chains at once if another process has removed our table, made
// it dormant, or modified its rules. The kernel keeps the connections, but while
// nothing translates their packets, these reach the wrong socket, which resets them.
// It reports whether the table was made: with chains, without elements. A flow table that the
// kernel refuses, as an interface has gone, is left out until repair decides on it: all else waits for none.
func (b *Backend) revive(ctx context.Context) (made bool, err error) {
	if b.mirror == nil || !b.modified.Load() {
		return false, nil
	}
	made, err = b.reviveMirror(ctx)
	if b.mirror.Flows != nil && refusedFlows(err) {
		b.dropFlows(b.Dialect)
		made, err = b.reviveMirror(ctx)
	}
	return made, err
}

// reviveMirror is revive with the flow table that the mirror has.
func (b *Backend) reviveMirror(ctx context.Context) (made bool, err error) {
	exists, dormant, err := b.conn.Lookup(b.Table())
	switch {
	case err != nil:
		return false, err
	case exists && !dormant:
		return false, b.reviveStructure(ctx)
	}
	w := b.writer(ctx, chunkBytes)
	b.batch.AddTable(layout.TableComment)
	if !exists {
		w.flowtable(b.mirror.Flows)
		w.sets(layout.SetsInUse(b.mirror.Counts()))
		w.chains(b.mirror.InOrder(b.Dialect))
	}
	w.flush()
	return !exists && w.err == nil, w.err
}

// reviveStructure restores chains and rules without reading elements, of which
// there may be a million. Sets that differ are made again; the deferred rules
// then wait for their elements. A flow table that only lost an interface is left to repair.
func (b *Backend) reviveStructure(ctx context.Context) error {
	have, err := b.conn.List(b.Table())
	switch {
	case errors.Is(err, nft.ErrChanged): // repair reads all of it, and tries again
		return nil
	case err != nil:
		return err
	case have == nil || have.Others > 0 || sameStructure(b.Dialect, have, b.mirror.Chains, layout.SetsInUse(b.mirror.Counts()), have.Flowtables[layout.FlowtableName]):
		return nil
	}
	d := &difference{want: &layout.Content{Dialect: b.Dialect, Flows: b.mirror.Flows}, counts: b.mirror.Counts(), have: have, rewrite: true}
	chains, w := b.mirror.InOrder(b.Dialect), b.writer(ctx, math.MaxInt)
	w.prepare(d)
	w.chains(chains)
	if d.sameSets() {
		w.deferredRules(chains)
	}
	w.flush()
	return w.err
}
