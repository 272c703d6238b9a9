package nftables

import (
	"context"
	"iter"
	"math"
	"slices"

	"svcproxy.dev/svcproxy/netutil/nft"
	"svcproxy.dev/svcproxy/proxier"
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
	w.update(u)
	if w.flush(); w.err == nil {
		b.endCommit()
	}
	return w.err
}

// Batch returns the transaction that makes an update which changes neither chains nor which sets exist, so that
// tests can measure it without a kernel.
func Batch(d *layout.Dialect, u *layout.TableUpdate) *nft.Batch {
	w := &writer{tableConn: newTableConn(d, nil), ctx: context.Background(), limit: math.MaxInt}
	w.update(u)
	return w.batch
}

// A writer fills the batch of a tableConn, and commits it whenever it is full.
// After an error, which it keeps, it does nothing.
type writer struct {
	*tableConn
	ctx   context.Context
	limit int // bytes of a transaction
	err   error
}

// writer returns one whose transactions have at most so many bytes, or fewer where
// the kernel accepts no more from us.
func (t *tableConn) writer(ctx context.Context, most int) *writer {
	t.batch.Reset()
	return &writer{tableConn: t, ctx: ctx, limit: min(most, t.conn.MaxBatch())}
}

// room makes room for so many bytes.
func (w *writer) room(n int) {
	if w.batch.Len()+n > w.limit {
		w.flush()
	}
}

// flush commits the batch.
func (w *writer) flush() {
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err == nil {
		w.err = w.commit()
		proxier.Progressed(w.ctx)
	}
	w.batch.Reset()
}

// update fills the batch with all of an update that is not committed ahead of its elements.
func (w *writer) update(u *layout.TableUpdate) {
	w.sets(u.FreshSets)
	w.changeChains(u.Widened)
	w.flush()
	w.elements(u.Edits)
	w.changeChains(u.Narrowed)
	for _, s := range u.UnusedSets {
		w.room(objectSize)
		w.batch.DeleteSet(s.Name())
	}
}

func (w *writer) sets(list []layout.Set) {
	for _, s := range list {
		w.room(objectSize)
		w.batch.AddSet(s.Define(w.Fam))
	}
}

// elements applies edits: first what adds, then what removes.
func (w *writer) elements(list []*layout.Edits) {
	slices.SortFunc(list, func(a, b *layout.Edits) int { return a.Set.CompareLoading(b.Set) })
	for _, e := range list {
		w.change(e.Set, e.Changed())
		w.each(e.Set, e.Added(), w.batch.AddElement)
	}
	for _, e := range slices.Backward(list) {
		w.each(e.Set, e.Removed(), w.batch.DeleteElement)
	}
}

// each puts elements of a set into the batch.
func (w *writer) each(s layout.Set, elements iter.Seq[nft.Element], do func(set string, e nft.Element)) {
	name := s.Name()
	for e := range elements {
		w.room(e.Size(name))
		if w.err != nil {
			return
		}
		do(name, e)
	}
}

// changedAtOnce is how many elements are removed and added again in one transaction at least.
const changedAtOnce = 100

// change replaces elements of a set: the kernel can only remove and add them.
func (w *writer) change(s layout.Set, elements iter.Seq[nft.Element]) {
	name := s.Name()
	for part := range slices.Chunk(slices.Collect(elements), changedAtOnce) {
		size := 0
		for _, e := range part {
			size += 2 * e.Size(name)
		}
		w.room(size)
		for _, e := range part {
			w.batch.DeleteElement(name, e)
		}
		for _, e := range part {
			w.batch.AddElement(name, e)
		}
	}
}

// chains adds chains, without their deferred rules.
func (w *writer) chains(list []*layout.Chain) {
	for _, c := range list {
		w.room(chainSize(c))
		w.batch.AddChain(&c.Chain)
		for _, r := range c.Rules[:len(c.Rules)-c.Deferred] {
			w.batch.AddRule(c.Name, r)
		}
	}
}

// deferredRules adds the rules that chains leaves out.
func (w *writer) deferredRules(list []*layout.Chain) {
	for _, c := range list {
		for _, r := range c.Rules[len(c.Rules)-c.Deferred:] {
			w.room(ruleSize(r))
			w.batch.AddRule(c.Name, r)
		}
	}
}

// changeChains adds and rewrites chains, and removes those that nothing jumps to any
// more. Each is added before another jumps to it.
func (w *writer) changeChains(ch layout.ChainChanges) {
	for _, c := range ch.Fresh {
		w.room(chainSize(c))
		w.batch.AddChain(&c.Chain)
		w.rules(c)
	}
	for _, c := range ch.Rewritten {
		w.room(chainSize(c))
		w.batch.FlushChain(c.Name)
		w.rules(c)
	}
	for _, name := range ch.Gone {
		w.room(objectSize)
		w.batch.FlushChain(name)
	}
	for _, name := range ch.Gone {
		w.room(objectSize)
		w.batch.DeleteChain(name)
	}
}

func (w *writer) rules(c *layout.Chain) {
	for _, r := range c.Rules {
		w.batch.AddRule(c.Name, r)
	}
}

// objectSize is an upper bound of what a set, a rule or a chain takes in a batch, in
// bytes, without expressions: names, a comment, and some attributes.
const objectSize = 512

func ruleSize(r nft.Rule) int { return objectSize + len(r.Exprs) }

func chainSize(c *layout.Chain) int {
	n := 2 * objectSize
	for _, r := range c.Rules {
		n += ruleSize(r)
	}
	return n
}

func (w *writer) flowtable(f *nft.Flowtable) {
	if f != nil {
		w.room(objectSize + 24*len(f.Devices))
		w.batch.AddFlowtable(f)
	}
}
