package nftables

import (
	"context"
	"maps"
	"math"
	"slices"

	"svcproxy.dev/svcproxy/proxier/policy"
)

// apply sends a delta to the kernel, without reading the table.
func (b *Backend) apply(ctx context.Context, d *policy.Delta) error {
	for _, chunk := range chunks(d, max(1, min(chunkElements, b.conn.MaxBatch()/elementBytes))) {
		if err := b.applyChunk(ctx, chunk); err != nil {
			return err
		}
	}
	return b.revokeLost(ctx, d.Services)
}

// applyChunk sends a delta in one transaction, if the kernel accepts as much, after
// the chains that it needs.
func (b *Backend) applyChunk(ctx context.Context, d *policy.Delta) error {
	u, err := b.beginCommit(b.dialect, d)
	if err != nil {
		return err
	}
	w := b.writer(ctx, math.MaxInt)
	w.sets(u.freshSets)
	w.changeChains(u.widened)
	w.flush()
	w.elements(editsOf(u.elements))
	w.changeChains(u.narrowed)
	for _, s := range u.unusedSets {
		w.room(objectSize)
		b.batch.DeleteSet(s.name())
	}
	if w.flush(); w.err == nil {
		b.endCommit(u)
	}
	return w.err
}

// revokeLost removes the tickets of endpoints that left their pool in a delta.
func (b *Backend) revokeLost(ctx context.Context, changes []policy.ServiceChange) error {
	ids, lost := b.mirror.pools, map[poolKey]bool{}
	for _, c := range changes {
		ids.eachEndpoint(c.Old, func(e poolKey) { lost[e] = true })
	}
	for _, c := range changes {
		ids.eachEndpoint(c.New, func(e poolKey) { delete(lost, e) })
	}
	if len(lost) == 0 || !slices.Contains(setsInUse(b.mirror.counts()), set{kind: tickets}) {
		return nil
	}
	return b.revoke(ctx, slices.Collect(maps.Keys(lost)))
}
