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
	made, err = b.reviveMirror(ctx, b.mirror)
	if b.mirror.Flows != nil && refusedFlows(err) {
		b.dropFlows(b.Dialect)
		made, err = b.reviveMirror(ctx, b.mirror)
	}
	return made, err
}

// reviveMirror restores the chains of a mirror, with the flow table that it has.
func (t *tableConn) reviveMirror(ctx context.Context, m *layout.Mirror) (made bool, err error) {
	exists, dormant, err := t.conn.Lookup(t.Table())
	switch {
	case err != nil:
		return false, err
	case exists && !dormant:
		return false, t.reviveStructure(ctx, m)
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

// reviveStructure restores chains and rules without reading elements, of which
// there may be a million. Sets that differ are made again; the deferred rules
// then wait for their elements. A flow table that only lost an interface is left to repair.
func (t *tableConn) reviveStructure(ctx context.Context, m *layout.Mirror) error {
	have, err := t.conn.List(t.Table())
	switch {
	case errors.Is(err, nft.ErrChanged): // repair reads all of it, and tries again
		return nil
	case err != nil:
		return err
	case have == nil || have.Others > 0 || sameStructure(t.Dialect, have, m.Chains, layout.SetsInUse(m.Counts()), have.Flowtables[layout.FlowtableName]):
		return nil
	}
	d := &difference{want: &layout.Content{Dialect: t.Dialect, Flows: m.Flows}, counts: m.Counts(), have: have, rewrite: true}
	chains, w := m.InOrder(t.Dialect), t.writer(ctx, math.MaxInt)
	w.prepare(d)
	w.chains(chains)
	if d.sameSets() {
		w.deferredRules(chains)
	}
	w.flush()
	return w.err
}
