package nftables

import (
	"context"
	"math"

	"svcproxy.dev/svcproxy/proxier/nftables/layout"
	"svcproxy.dev/svcproxy/proxier/policy"
)

// elementBytes is an upper estimate of what an element takes in a transaction: one
// without a comment some 60 bytes, the largest 300.
const elementBytes = 256

// writeDelta sends a delta to the kernel, without reading the table.
func (b *Backend) writeDelta(ctx context.Context, d *policy.Delta) error {
	for _, chunk := range layout.Chunks(d, max(1, min(layout.ChunkElements, b.conn.MaxBatch()/elementBytes))) {
		if err := b.applyChunk(ctx, chunk); err != nil {
			return err
		}
	}
	return b.revokeLost(ctx, b.mirror, d.Services)
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
		b.endCommit()
	}
	return w.err
}
