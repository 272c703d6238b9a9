package nftables

import (
	"context"
	"maps"
	"math"
	"slices"

	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// elementBytes is an upper estimate of what an element takes in a transaction: one
// without a comment some 60 bytes, the largest 300.
const elementBytes = 256

// apply sends a delta to the kernel, without reading the table.
func (b *Backend) apply(ctx context.Context, d *policy.Delta) error {
	for _, chunk := range layout.Chunks(d, max(1, min(layout.ChunkElements, b.conn.MaxBatch()/elementBytes))) {
		if err := b.applyChunk(ctx, chunk); err != nil {
			return err
		}
	}
	return b.revokeLost(ctx, d.Services)
}

// applyChunk sends a delta in one transaction, if the kernel accepts as much, after
// the chains that it needs.
func (b *Backend) applyChunk(ctx context.Context, d *policy.Delta) error {
	u := b.beginCommit(b.Dialect, d)
	w := b.writer(ctx, math.MaxInt)
	w.sets(u.FreshSets)
	w.changeChains(u.Widened)
	w.flush()
	w.elements(u.Edits)
	w.changeChains(u.Narrowed)
	for _, s := range u.UnusedSets {
		w.room(objectSize)
		b.batch.DeleteSet(s.Name())
	}
	if w.flush(); w.err == nil {
		b.endCommit(u)
	}
	return w.err
}

// revokeLost removes the tickets of endpoints that left their pool in a delta.
func (b *Backend) revokeLost(ctx context.Context, changes []policy.ServiceChange) error {
	ids, lost := b.mirror.Pools, map[layout.PoolKey]bool{}
	for _, c := range changes {
		ids.EachEndpoint(c.Old, func(e layout.PoolKey) { lost[e] = true })
	}
	for _, c := range changes {
		ids.EachEndpoint(c.New, func(e layout.PoolKey) { delete(lost, e) })
	}
	if len(lost) == 0 || !slices.Contains(layout.SetsInUse(b.mirror.Counts()), layout.Tickets) {
		return nil
	}
	return b.revoke(ctx, slices.Collect(maps.Keys(lost)))
}
