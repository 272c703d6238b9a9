package nftables

import (
	"context"
	"errors"
	"maps"
	"math"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier/nftables/layout"
)

// restoreChains restores the chains at once if another process has removed our table, made
// it dormant, or modified its rules. The kernel keeps the connections, but while
// nothing translates their packets, these reach the wrong socket, which resets them.
// It reports whether the table was recreated: with chains, without elements. A flow table that the
// kernel refuses, as an interface has gone, is left out until repair decides on it: all else waits for none.
func (b *Backend) restoreChains(ctx context.Context) (recreated bool, err error) {
	if b.mirror == nil || !b.needsRepair.Load() {
		return false, nil
	}
	recreated, err = b.restoreMirror(ctx, b.mirror)
	if b.mirror.Flows != nil && refusedFlows(err) {
		b.dropFlows(b.Dialect)
		recreated, err = b.restoreMirror(ctx, b.mirror)
	}
	return recreated, err
}

// restoreMirror restores the chains of a mirror, with the flow table that it has.
func (t *tableConn) restoreMirror(ctx context.Context, m *layout.Mirror) (recreated bool, err error) {
	exists, dormant, err := t.conn.Lookup(t.Table())
	switch {
	case err != nil:
		return false, err
	case exists && !dormant:
		return false, t.restoreStructure(ctx, m)
	}
	w := t.writer(ctx, chunkBytes)
	t.batch.AddTable(layout.TableComment)
	if !exists {
		w.flowtable(m.Flows)
		w.sets(layout.SetsInUse(m.Counts()))
		w.chains(m.InOrder(t.Dialect))
	}
	w.flush()
	return !exists && w.err == nil, w.err
}

// restoreStructure restores chains and rules without reading elements, of which
// there may be a million. Sets that differ are made again; the deferred rules
// then wait for their elements. A flow table that only lost an interface is left to repair.
func (t *tableConn) restoreStructure(ctx context.Context, m *layout.Mirror) error {
	have, err := t.conn.List(t.Table())
	switch {
	case errors.Is(err, nft.ErrChanged): // repair reads all of it, and tries again
		return nil
	case err != nil:
		return err
	case have == nil || have.Others > 0:
		return nil
	}
	d := &difference{target: m.Listing(t.Dialect), sets: layout.SetsInUse(m.Counts()), have: have, rewrite: true}
	same := *d.target
	same.Flowtables = maps.Clone(have.Flowtables)
	maps.DeleteFunc(same.Flowtables, func(name string, _ *nft.Flowtable) bool { return name != layout.FlowtableName })
	if have.Equal(&same) {
		return nil
	}
	chains, w := m.InOrder(t.Dialect), t.writer(ctx, math.MaxInt)
	w.prepare(d)
	w.chains(chains)
	if maps.EqualFunc(have.Sets, d.target.Sets, (*nft.Set).Equal) {
		w.deferredRules(chains)
	}
	w.flush()
	return w.err
}
